//! The ways of placing requests that are compared.

use anyhow::bail;
use kvlane_router::scheduling::{Policy, Weights};
use serde::{Deserialize, Serialize};

use super::settings::RouterSettings;

/// How requests are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    RoundRobin,
    LeastLoaded,
    /// Every conversation on a worker of its own; requests name it.
    Session,
    /// The plain cost of the reference: unique blocks, no slots.
    Dynamo,
    /// Ours: slots, requests, blocks.
    Kvlane,
    /// The same, when requests name their conversation.
    KvlaneSession,
}

impl Mode {
    pub const ALL: [Self; 6] =
        [Self::RoundRobin, Self::LeastLoaded, Self::Session, Self::Dynamo, Self::Kvlane, Self::KvlaneSession];

    /// What a demonstration goes through, each with its engine: round robin, ours, and ours with drafts.
    pub const PHASES: [(&'static str, Self, &'static str); 4] = [
        ("round_robin", Self::RoundRobin, "h200-llama70b-fp8"),
        ("kvlane", Self::Kvlane, "h200-llama70b-fp8"),
        ("kvlane_draft8b", Self::Kvlane, "h200-llama70b-draft8b"),
        ("kvlane_eagle3", Self::Kvlane, "h200-llama70b-eagle3"),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
            Self::Session => "session",
            Self::Dynamo => "dynamo",
            Self::Kvlane => "kvlane",
            Self::KvlaneSession => "kvlane_session",
        }
    }

    /// Whether requests name their conversation.
    pub(super) fn names_sessions(self) -> bool {
        matches!(self, Self::Session | Self::KvlaneSession)
    }

    pub(super) fn policy(self, router: &RouterSettings) -> Policy {
        match self {
            Self::RoundRobin => Policy::RoundRobin,
            Self::LeastLoaded => Policy::LeastLoaded,
            Self::Session => Policy::Session,
            Self::Dynamo => Policy::Kv(router.weights(Weights::DYNAMO)),
            Self::Kvlane | Self::KvlaneSession => Policy::Kv(router.weights(Weights::KVLANE)),
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let word = text.replace('-', "_");
        let Some(mode) = Self::ALL.into_iter().find(|mode| mode.name() == word) else {
            bail!("mode is `{text}`, expected one of {}", Self::ALL.map(Self::name).join(", "));
        };
        Ok(mode)
    }
}
