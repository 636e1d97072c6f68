//! Settings as files, variables and flags say them: taken, or refused with a sentence.
#![no_main]

use std::sync::Once;

use kvlane_router::cli::{print_config, print_defaults};
use kvlane_router::config::{Config, ConfigError, Sources, WorkerSpec};
use kvlane_router::discovery::sources::{ServiceRef, parse_workers};
use libfuzzer_sys::fuzz_target;

fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let (config, settings) = Config::load(sources)?;
    print_config(&settings, &mut Vec::new()).expect("memory");
    Ok(config)
}

fn file(text: &str) -> Sources {
    Sources { file: Some(("router.toml".to_owned(), text.to_owned())), ..Sources::default() }
}

static DEFAULTS: Once = Once::new();

fuzz_target!(|text: &str| {
    DEFAULTS.call_once(|| {
        let mut defaults = Vec::new();
        print_defaults(&mut defaults).expect("memory");
        load(&file(&String::from_utf8(defaults).expect("a text"))).expect("defaults load");
    });
    if let Err(error) = load(&file(text)) {
        assert!(error.to_string().starts_with("router.toml: "), "{error}");
    }
    let set: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Err(error) = load(&Sources { set: set.clone(), ..Sources::default() }) {
        assert!(error.to_string().starts_with("--set: "), "{error}");
    }
    let variable = |line: &String| Some(line.split_once('=')?).map(|(a, b)| (a.to_owned(), b.to_owned()));
    let env = set.iter().filter_map(variable).collect();
    if let Err(error) = load(&Sources { env, ..Sources::default() }) {
        assert!(error.to_string().starts_with("environment "), "{error}");
    }
    for line in text.lines() {
        match WorkerSpec::parse(line) {
            Ok(spec) => assert_eq!(WorkerSpec::parse(&spec.url).map(|again| again.url), Ok(spec.url.clone())),
            Err(expected) => assert!(!expected.is_empty()),
        }
        if let Err(expected) = ServiceRef::parse(line) {
            assert!(expected.starts_with("NAMESPACE/NAME"));
        }
    }
    if let Err(error) = parse_workers(text) {
        assert!(!error.is_empty());
    }
});
