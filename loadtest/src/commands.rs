//! One file for each command.

mod run;
mod simulate;

pub(crate) use self::run::{Run, run};
pub(crate) use self::simulate::{Simulate, simulate};
