//! Files the load generator is given: traces, results to compare, calibrations of simulated engines, step logs.
#![no_main]

use kvlane_engine_adapters::sim::{Calibration, Work};
use kvlane_loadtest::calibrate;
use kvlane_loadtest::compare::{self, Side, USUAL};
use kvlane_loadtest::live::Written;
use kvlane_loadtest::results::Results;
use kvlane_loadtest::trace::{HASH_TOKENS, Trace, stats};
use libfuzzer_sys::fuzz_target;

fn compared(results: &Results) {
    let figures: Vec<String> = USUAL.iter().map(|figure| (*figure).to_owned()).collect();
    let metrics = compare::metrics(&figures).expect("the usual ones");
    for set in &results.sets {
        for mode in set.modes() {
            for against in set.modes() {
                let found = compare::compare(Side { set, mode }, Side { set, mode: against }, &metrics, true);
                let _ = compare::table("title", ("one", "other"), &found).markdown();
            }
        }
    }
}

fuzz_target!(|text: &str| {
    match Trace::parse(text, "trace") {
        Ok(trace) => {
            assert!(trace.requests.is_sorted_by_key(|recorded| recorded.timestamp));
            let stats = stats(&trace, HASH_TOKENS);
            assert_eq!(stats.requests, trace.requests.len());
        }
        Err(error) => assert!(format!("{error:#}").starts_with("trace")),
    }
    if let Ok(results) = Results::parse(text) {
        compared(&results);
        let again = serde_json::to_string(&results).expect("it was JSON");
        assert_eq!(Results::parse(&again).expect("its own form"), results);
    }
    if let Ok(run) = Written::parse(text) {
        compared(&run.as_results());
    }
    match Calibration::parse("mine.toml", text) {
        Ok(calibration) => assert!(calibration.step_ms(&Work { batch: 1, context: 1, prefill: 1, pairs: 1 }) >= 0.0),
        Err(error) => assert!(error.to_string().starts_with("calibration")),
    }
    match calibrate::read("steps", text.as_bytes()) {
        Ok(steps) => {
            let base = Calibration { roofline: true, ..Calibration::preset(Calibration::DEFAULT).expect("a preset") };
            let fitted = calibrate::calibrate(&base, &steps);
            assert!(fitted.weights_ms >= 0.0 && fitted.prefill_us_per_token >= 0.0);
            assert_eq!(calibrate::Residuals::of(&fitted, &steps).steps, steps.len());
        }
        Err(error) => assert!(format!("{error:#}").starts_with("steps")),
    }
});
