//! Receive at 100 Gb/s, as `iperf` measures it.

#[cfg(test)]
mod link;
mod ticks;

#[cfg_attr(not(test), expect(dead_code, reason = "the workload that uses it follows"))]
mod receiver;
#[cfg_attr(not(test), expect(dead_code, reason = "the workload that uses it follows"))]
mod sender;
