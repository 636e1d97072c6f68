//! Multi-turn load and what it measures. So far in virtual time: [`simulate`]. Its figures are simulated.

pub mod simulate;
