//! What one simulated worker is started with.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use kvlane_indexer::BlockSize;

use super::events::EventOptions;
use crate::sim::Calibration;

#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What the worker calls itself in metrics.
    pub name: String,
    pub address: SocketAddr,
    /// A model directory; none for the built-in model.
    pub model_path: Option<PathBuf>,
    /// The name requests use; none for the directory's.
    pub model_name: Option<String>,
    /// Adapters that requests may name as their model.
    pub lora_names: Vec<String>,
    /// Tokens a prompt and its answer may have; none for what the model says.
    pub max_model_len: Option<usize>,
    pub calibration: Calibration,
    /// Engine time runs this many times as fast as real time.
    pub speed: f64,
    pub seed: u64,
    /// How long answers are when nothing ends them earlier.
    pub answer_tokens: RangeInclusive<usize>,
    pub events: EventOptions,
    /// Whether tests may switch faults on.
    pub fault_switches: bool,
    pub max_body_bytes: usize,
    /// What has to be shown to use `/v1`, where anything has.
    pub api_key: Option<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("{field} is {value}, expected {expected}")]
pub struct OptionsError {
    field: &'static str,
    value: String,
    expected: String,
}

impl WorkerOptions {
    /// One worker on a port of the system's choosing, with embedded defaults.
    pub fn new(calibration: Calibration) -> Self {
        Self {
            name: "worker-0".to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            model_path: None,
            model_name: None,
            lora_names: Vec::new(),
            max_model_len: None,
            calibration,
            speed: 1.0,
            seed: 0,
            answer_tokens: 64..=512,
            events: EventOptions::default(),
            fault_switches: false,
            max_body_bytes: 45 << 20,
            api_key: None,
        }
    }

    pub fn validate(&self) -> Result<(), OptionsError> {
        let refuse = |field, value: String, expected: &str| {
            Err(OptionsError { field, value, expected: expected.to_owned() })
        };
        if !(1e-6..=1e9).contains(&self.speed) {
            return refuse("--speed", self.speed.to_string(), "a factor between 0.000001 and 1000000000");
        }
        if *self.answer_tokens.start() == 0 || self.answer_tokens.is_empty() {
            let (from, to) = (self.answer_tokens.start(), self.answer_tokens.end());
            return refuse(
                "--answer-tokens",
                format!("{from}..{to}"),
                "FROM..TO with 1 or more tokens, such as 64..512",
            );
        }
        if self.max_model_len == Some(0) {
            return refuse("--max-model-len", "0".to_owned(), "1 or more tokens");
        }
        self.block_size().map(drop)
    }

    /// Tokens in a block.
    pub(super) fn block_size(&self) -> Result<BlockSize, OptionsError> {
        let tokens = self.calibration.block_tokens;
        u32::try_from(tokens).ok().and_then(BlockSize::new).ok_or_else(|| OptionsError {
            field: "block_tokens",
            value: tokens.to_string(),
            expected: "1 or more, and less than 2^32".to_owned(),
        })
    }
}
