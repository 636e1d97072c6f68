use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn flag(key: &str, flag: &str, values: &[&str]) -> (String, String, Vec<String>) {
    (key.to_owned(), flag.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())
}

fn error(sources: &Sources) -> String {
    Config::load(sources).unwrap_err().to_string()
}

#[test]
fn defaults_are_whole_and_names_are_there_once() {
    let config = Config::defaults().unwrap();
    assert_eq!((config.server.port, config.routing.mode), (8000, Mode::Kv));
    assert!(config.model.path.is_none() && config.workers.list.is_empty());
    let names = KNOBS.iter().flat_map(|knob| {
        let flag = knob.flag.map(|flag| format!("--{flag}"));
        let env = knob.env.iter().map(|name| (*name).to_owned());
        [knob.key(), knob.own_env()].into_iter().chain(flag).chain(env)
    });
    let (names, mut seen) = (names.collect::<Vec<_>>(), BTreeSet::new());
    names.iter().for_each(|name| assert!(seen.insert(name), "{name} twice"));
    // What is written down as a default is TOML.
    for knob in KNOBS {
        assert!(knob.default.parse::<toml::Value>().is_ok(), "{}: {}", knob.key(), knob.default);
    }
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let mut sources = Sources {
        file: Some(("router.toml".into(), "[routing]\nmode = 'random'\noverlap_weight = 2".into())),
        ..Sources::default()
    };
    let load = |sources: &Sources| Config::load(sources).unwrap();
    let (config, settings) = load(&sources);
    assert_eq!((config.routing.mode, config.routing.overlap_weight), (Mode::Random, 2.0));
    let origin = |settings: &Settings| {
        settings.all().find(|(knob, ..)| knob.key() == "routing.mode").unwrap().2.to_string()
    };
    assert_eq!(origin(&settings), "router.toml");
    sources.env = env(&[("DYN_ROUTER_MODE", "round-robin")]);
    let (config, settings) = load(&sources);
    assert_eq!(config.routing.mode, Mode::RoundRobin);
    assert_eq!(origin(&settings), "environment DYN_ROUTER_MODE");
    sources.flags = vec![flag("routing.mode", "router-mode", &["least_loaded"])];
    let (config, settings) = load(&sources);
    assert_eq!((config.routing.mode, origin(&settings)), (Mode::LeastLoaded, "--router-mode".to_owned()));
    sources.set = vec!["routing.mode = session".into()];
    assert_eq!(load(&sources).0.routing.mode, Mode::Session);
}

/// The names Dynamo's deployments set.
#[test]
fn dynamos_names_are_understood() {
    let sources = Sources {
        env: env(&[
            ("DYN_ROUTER_MODE", "kv"),
            ("ROUTER_MODE", "kv"),
            ("DYN_KV_CACHE_BLOCK_SIZE", "32"),
            ("DYN_REQUEST_PLANE", "http"),
            ("DYN_EVENT_PLANE", "zmq"),
            ("DYN_KV_OVERLAP_SCORE_WEIGHT", "1.5"),
            ("DYN_ROUTER_TEMPERATURE", "0.25"),
            ("DYN_HTTP_PORT", "9000"),
            ("DYN_HTTP_BODY_LIMIT_MB", "192"),
            ("NATS_SERVER", "nats://n:4222"),
            ("DYN_ROUTER_USE_KV_EVENTS", "0"),
        ]),
        ..Sources::default()
    };
    let (config, _) = Config::load(&sources).unwrap();
    assert_eq!((config.index.block_size, config.events.plane), (32, EventPlane::Zmq));
    assert_eq!((config.routing.overlap_weight, config.routing.temperature), (1.5, 0.25));
    assert_eq!((config.server.port, config.server.body_limit_mib), (9000, 192));
    assert!(!config.routing.kv_events && config.events.nats_url.is_some());
}

#[test]
fn what_is_wrong_is_named_and_what_would_be_right() {
    let with_env = |pairs| Sources { env: env(pairs), ..Sources::default() };
    let with_file =
        |text: &str| Sources { file: Some(("router.toml".into(), text.into())), ..Sources::default() };
    for (sources, says) in [
        (
            with_env(&[("DYN_ROUTER_MODE", "kvv")]),
            "environment DYN_ROUTER_MODE: `routing.mode` is \"kvv\", expected one of kv, round_robin, random, \
             least_loaded, power_of_two, session (default 'kv')",
        ),
        (with_env(&[("DYN_REQUEST_PLANE", "tcp")]), "expected http: engines are spoken to as they are"),
        (with_env(&[("DYN_REQUEST_PLANE", "nats")]), "expected http: engines are spoken to as they are"),
        (
            with_env(&[("ROUTER_MODE", "kv"), ("DYN_ROUTER_MODE", "random")]),
            "environment ROUTER_MODE is \"kv\" and DYN_ROUTER_MODE is \"random\"",
        ),
        (
            with_env(&[("DYN_HTTP_PORT", "80000")]),
            "`server.port` is 80000, expected a whole number from 0 to 65535",
        ),
        (with_env(&[("DYN_EVENT_PLANE", "nats")]), "expected events.nats_url"),
        (
            with_file("[routing]\noverlap_weight = -1"),
            "router.toml: `routing.overlap_weight` is -1, expected 0 to 1000000 (default 1.0)",
        ),
        (
            with_file("[routing]\noverlap_wait = 1"),
            "router.toml: there is no setting `routing.overlap_wait`, did you mean `routing.overlap_weight`?",
        ),
        (
            with_file("[rooting]\nmode = 'kv'"),
            "there is no setting `rooting.mode`, did you mean `routing.mode`?",
        ),
        (with_file("port = 1"), "there is no setting `port`"),
        (with_file("[routing"), "router.toml: "),
        (with_file("[workers]\nlist = ['ftp://x']"), "expected http://HOST:PORT"),
        (with_file("[index]\nmax_mib = 0"), "`index.max_mib` is 0, expected 1 or more"),
        (Sources { set: vec!["mode".into()], ..Sources::default() }, "--set: \"mode\" is no setting"),
        (
            Sources { set: vec!["routing.temperature=warm".into()], ..Sources::default() },
            "--set: `routing.temperature` is \"warm\", expected a number (default 0.0)",
        ),
    ] {
        let error = error(&sources);
        assert!(error.contains(says), "{error}\n  lacks: {says}");
    }
}

#[test]
fn lists_come_from_repeated_flags_or_one_variable() {
    let sources = Sources {
        flags: vec![flag("workers.list", "worker", &["http://a:1", "url=http://b:2,slots=3"])],
        ..Sources::default()
    };
    let (config, _) = Config::load(&sources).unwrap();
    assert_eq!(config.workers.list.len(), 2);
    let sources = Sources {
        env: env(&[("KVLANE_WORKERS_LIST", "http://a:1 http://b:2\nhttp://c:3")]),
        ..Sources::default()
    };
    assert_eq!(Config::load(&sources).unwrap().0.workers.list.len(), 3);
}
