//! What a performance engineer found in an hour with the program, by number.

mod number_1;
mod number_2;
mod number_3;
mod number_4;
mod number_5;
