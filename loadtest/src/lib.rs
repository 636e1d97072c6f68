//! Multi-turn load and what it measures: in real time against any OpenAI-compatible endpoint ([`live`]), and in virtual
//! time against simulated engines ([`simulate`], whose figures are simulated; [`faults`], where everything goes wrong).

#![forbid(unsafe_code)]

mod agenda;
pub mod arrivals;
pub mod broker;
pub mod calibrate;
pub mod chaos;
pub mod client;
pub mod compare;
pub mod corpus;
pub mod faults;
mod gauges;
pub mod http;
pub mod live;
pub mod measure;
pub mod overhead;
pub mod processes;
pub mod report;
pub mod results;
pub mod simulate;
pub mod soak;
pub mod statistics;
pub mod sweep;
pub mod think;
pub mod trace;
pub mod view;
pub mod web;
pub mod workload;
