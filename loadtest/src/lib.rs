//! Multi-turn load and what it measures: in real time against any OpenAI-compatible endpoint ([`live`]), and in virtual
//! time against simulated engines ([`simulate`], whose figures are simulated).

pub mod client;
pub mod corpus;
pub mod live;
pub mod measure;
pub mod simulate;
