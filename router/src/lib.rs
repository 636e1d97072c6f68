//! The routing service. So far its decision: [`scheduling`].

pub mod scheduling;
