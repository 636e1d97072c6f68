//! What a simulated engine is like: its sizes and how long its steps take, from a named file.

use serde::{Deserialize, Serialize};

/// Sizes and times of one worker. Presets are files of this form; see `sim/presets`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    pub name: String,
    /// Sequences decoded or prefilled at a time: the worker's slots.
    pub max_batch: usize,
    /// Tokens one step may carry, decoded and prefilled together.
    pub max_num_tokens: usize,
    pub block_tokens: usize,
    /// Blocks of KV cache.
    pub kv_blocks: usize,
    /// Whether a sequence is admitted only when its whole answer will fit; otherwise sequences are preempted
    /// when blocks run out.
    pub reserve_output: bool,
    /// Steps by which tokens are handed out late: the overlap scheduler's lag.
    pub lag_steps: f64,
    /// Reading the weights, and what every step costs besides.
    pub weights_ms: f64,
    /// Reading one cached token's keys and values.
    pub kv_ns_per_token: f64,
    /// Added when the step cannot replay a captured graph: any prefill, or a batch that was not captured.
    pub eager_ms: f64,
    /// Batches up to this size are captured, and the listed ones.
    pub graph_max: usize,
    pub graph_sizes: Vec<usize>,
    pub prefill_us_per_token: f64,
    /// Whether new tokens are computed while the weights are read, so that a step takes the longer of both; otherwise
    /// their times add up, which overcharges prefills of a few hundred tokens.
    #[serde(default)]
    pub roofline: bool,
    /// Attention of a prefilled token to one before it.
    #[serde(default)]
    pub attention_ps_per_pair: f64,
    /// A step that is launched piece by piece takes no less, however little there is to compute.
    #[serde(default)]
    pub launch_ms: f64,
    #[serde(default)]
    pub speculation: Option<Speculation>,
    #[serde(default)]
    pub outside: OutsideDelay,
}

/// Drafting several tokens a step and keeping those the model agrees with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speculation {
    pub draft_tokens: usize,
    /// Accepted of drafted, as engines count it.
    pub acceptance: f64,
    pub draft_ms: f64,
    /// Verifying one drafted token of one sequence.
    pub verify_ms_per_token: f64,
}

/// The delay between client and engine that the reference deployment had and a lean front end does not.
/// A parameter of its own, so that its absence is never mistaken for a gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutsideDelay {
    pub enabled: bool,
    /// From the client to the worker's queue.
    pub request_ms: f64,
    /// From the worker to the client: a fixed part, one per request in flight there, and a log-normal spread.
    pub response_ms: f64,
    pub response_ms_per_inflight: f64,
    pub jitter: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("calibration is `{name}`, expected a file or one of {presets}", presets = names().join(", "))]
    Unknown { name: String },
    #[error("calibration `{name}` cannot be read: {error}")]
    Unreadable { name: String, error: toml::de::Error },
    #[error("calibration `{name}`: `{field}` is {value}, expected {expected}")]
    Invalid { name: String, field: &'static str, value: f64, expected: &'static str },
}

/// In whatever unit a time is given.
const MOST_TIME: f64 = 1e12;

const PRESETS: [(&str, &str); 5] = [
    ("h200-llama70b-fp8", include_str!("presets/h200-llama70b-fp8.toml")),
    ("h200-llama70b-draft8b", include_str!("presets/h200-llama70b-draft8b.toml")),
    ("h200-llama70b-eagle3", include_str!("presets/h200-llama70b-eagle3.toml")),
    ("h100-tp2-llama70b", include_str!("presets/h100-tp2-llama70b.toml")),
    ("instant", include_str!("presets/instant.toml")),
];

fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|(name, _)| *name).collect()
}

impl Calibration {
    pub const DEFAULT: &str = "h200-llama70b-fp8";

    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|(name, _)| *name)
    }

    pub fn preset(name: &str) -> Result<Self, CalibrationError> {
        let (_, text) = PRESETS
            .iter()
            .find(|(preset, _)| *preset == name)
            .ok_or_else(|| CalibrationError::Unknown { name: name.to_owned() })?;
        Self::parse(name, text)
    }

    /// Reads a calibration file; `name` is for messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, CalibrationError> {
        let calibration: Self = toml::from_str(text)
            .map_err(|error| CalibrationError::Unreadable { name: name.to_owned(), error })?;
        calibration.validate()?;
        Ok(calibration)
    }

    /// Refuses sizes and times no engine can have.
    pub fn validate(&self) -> Result<(), CalibrationError> {
        let speculation = self.speculation.unwrap_or(Speculation {
            draft_tokens: 0,
            acceptance: 0.0,
            draft_ms: 0.0,
            verify_ms_per_token: 0.0,
        });
        let whole = |field, value: usize| (field, value as f64, value >= 1, "1 or more");
        // Sums and products of times have to be times.
        let time = |field, value: f64| (field, value, (0.0..=MOST_TIME).contains(&value), "0 to 1e12");
        let (share, drafted) = (speculation.acceptance, speculation.draft_tokens as f64);
        for (field, value, fine, expected) in [
            whole("max_batch", self.max_batch),
            whole("max_num_tokens", self.max_num_tokens),
            whole("block_tokens", self.block_tokens),
            whole("kv_blocks", self.kv_blocks),
            time("lag_steps", self.lag_steps),
            time("weights_ms", self.weights_ms),
            time("kv_ns_per_token", self.kv_ns_per_token),
            time("eager_ms", self.eager_ms),
            time("prefill_us_per_token", self.prefill_us_per_token),
            time("attention_ps_per_pair", self.attention_ps_per_pair),
            time("launch_ms", self.launch_ms),
            time("speculation.draft_ms", speculation.draft_ms),
            time("speculation.verify_ms_per_token", speculation.verify_ms_per_token),
            ("speculation.draft_tokens", drafted, drafted <= 256.0, "at most 256"),
            ("speculation.acceptance", share, (0.0..=1.0).contains(&share), "between 0 and 1"),
            time("outside.request_ms", self.outside.request_ms),
            time("outside.response_ms", self.outside.response_ms),
            time("outside.response_ms_per_inflight", self.outside.response_ms_per_inflight),
            time("outside.jitter", self.outside.jitter),
        ] {
            if !fine {
                return Err(CalibrationError::Invalid { name: self.name.clone(), field, value, expected });
            }
        }
        Ok(())
    }

    /// Whether a step that carries this replays a captured graph.
    pub fn captured(&self, work: &Work) -> bool {
        work.prefill == 0 && (work.batch <= self.graph_max || self.graph_sizes.contains(&work.batch))
    }

    /// How long a step takes.
    pub fn step_ms(&self, work: &Work) -> f64 {
        let Work { batch, context, prefill, pairs } = *work;
        let drafting = self.speculation.map_or(0.0, |speculation| {
            let drafted = speculation.draft_tokens as f64;
            drafted * (speculation.draft_ms + speculation.verify_ms_per_token * batch as f64)
        });
        let per_token = self.prefill_us_per_token * 1e-3;
        let computed = if self.roofline {
            self.weights_ms.max(per_token * (prefill + batch) as f64)
        } else {
            self.weights_ms + per_token * prefill as f64
        };
        let attended =
            self.kv_ns_per_token * 1e-6 * context as f64 + self.attention_ps_per_pair * 1e-9 * pairs as f64;
        let captured = computed + attended + drafting;
        if self.captured(work) { captured } else { (captured + self.eager_ms).max(self.launch_ms) }
    }
}

/// What a step carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Sequences decoded, and the cached tokens that are read for them.
    pub batch: usize,
    pub context: u64,
    /// New tokens of prompts, and pairs of one of them and one that it attends to.
    pub prefill: usize,
    pub pairs: u64,
}

impl Work {
    /// Adds the tokens of a prompt from `start` on.
    pub fn prefill(&mut self, start: usize, count: usize) {
        let (start, new) = (start as u64, count as u64);
        self.prefill += count;
        self.pairs += new * start + new * (new + 1) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_carries_its_name() {
        for name in Calibration::presets() {
            assert_eq!(Calibration::preset(name).unwrap().name, name);
        }
    }

    #[test]
    fn decode_steps_take_what_the_calibration_sheet_says() {
        let h200 = Calibration::preset(Calibration::DEFAULT).unwrap();
        // Mean context of 5,200 tokens; 33 falls off the captured graphs, 64 is captured again.
        for (batch, ms) in [(20, 24.4), (32, 26.8), (33, 38.0), (40, 39.4), (60, 43.5), (64, 33.3)] {
            let step = h200.step_ms(&Work { batch, context: batch as u64 * 5200, ..Work::default() });
            assert!((step - ms).abs() < 0.06, "batch {batch}: {step} instead of {ms}");
        }
        let prefill = Work { prefill: 1000, ..Work::default() };
        assert!((h200.step_ms(&prefill) - (20.3 + 11.0 + 145.0)).abs() < 1e-9);
    }

    #[test]
    fn under_a_roof_small_prefills_are_nearly_free() {
        let h200 = Calibration::preset(Calibration::DEFAULT).unwrap();
        let engine = Calibration {
            roofline: true,
            prefill_us_per_token: 115.0,
            attention_ps_per_pair: 1000.0,
            launch_ms: 25.0,
            ..h200
        };
        let ms = |batch: usize, prefill: usize| {
            let mut work = Work { batch, ..Work::default() };
            work.prefill(100, prefill);
            engine.step_ms(&work)
        };
        assert!((ms(8, 0) - 20.3).abs() < 1e-9, "captured: {}", ms(8, 0));
        assert!((ms(8, 64) - 31.3).abs() < 0.01, "while weights are read: {}", ms(8, 64));
        assert!((ms(8, 1000) - (115e-3 * 1008.0 + 11.0 + 1e-6 * 600_500.0)).abs() < 1e-9);
        let launched = Calibration { eager_ms: 0.0, ..engine };
        assert_eq!(launched.step_ms(&Work { prefill: 1, pairs: 1, ..Work::default() }), 25.0);
    }

    #[test]
    fn wrong_calibrations_are_refused_with_the_field() {
        let text = PRESETS[0].1;
        let refused = |text: &str| Calibration::parse("mine.toml", text).unwrap_err().to_string();
        assert_eq!(
            refused(&text.replace("max_batch = 64", "max_batch = 0")),
            "calibration `h200-llama70b-fp8`: `max_batch` is 0, expected 1 or more"
        );
        let endless = refused(&text.replace("weights_ms = ", "weights_ms = 1e300 # "));
        assert!(endless.contains("`weights_ms` is 1000000"), "{endless}");
        assert!(endless.ends_with("expected 0 to 1e12"), "{endless}");
        assert!(refused(&text.replace("max_batch", "max_bach")).contains("unknown field `max_bach`"));
        let unknown = Calibration::preset("b200").unwrap_err().to_string();
        assert!(unknown.starts_with("calibration is `b200`, expected a file or one of h200-llama70b-fp8,"));
    }
}
