//! Findings of a performance engineer who used the program for an hour, by number.

mod number_1;
mod number_2;
mod number_3;
mod number_4;
mod number_5;
