//! A client's body, read, and written for every kind of engine: what is sent is JSON with the same fields, in the same
//! bytes, but for the edits that `router::openai` names.
#![no_main]

use std::collections::BTreeMap;

use bytes::Bytes;
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_router::openai::{ClientRequest, Endpoint};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

type Fields<'a> = BTreeMap<String, &'a RawValue>;

fn fields(body: &[u8]) -> Fields<'_> {
    serde_json::from_slice(body).expect("an object")
}

/// Of an object, or none where it is something else.
fn inner(value: Option<&&RawValue>) -> BTreeMap<String, String> {
    let parsed: Option<Fields<'_>> = value.and_then(|value| serde_json::from_str(value.get()).ok());
    parsed.unwrap_or_default().into_iter().map(|(name, value)| (name, value.get().to_owned())).collect()
}

fn check(request: &ClientRequest, engine: Engine) {
    let body = request.body_for(engine);
    let (came, mut sent) = (fields(&request.bytes), fields(&body));
    let (mut options, mut xargs) = (inner(came.get("stream_options")), inner(came.get("vllm_xargs")));
    if request.adds_usage(engine) {
        options.insert("include_usage".to_owned(), "true".to_owned());
        assert_eq!(inner(sent.remove("stream_options").as_ref()), options);
    }
    if xargs.remove("kv_cache_report_mode").is_some() {
        assert_eq!(inner(sent.remove("vllm_xargs").as_ref()), xargs);
    }
    let own = |name: &str| engine == Engine::Trtllm && (name == "ext" || name == "nvext");
    let edited = |name: &str| {
        own(name)
            || name == "stream_options" && request.adds_usage(engine)
            || name == "vllm_xargs" && !sent.contains_key(name)
    };
    let as_sent = |fields: &Fields<'_>| -> Vec<(String, String)> {
        let kept = fields.iter().filter(|(name, _)| !edited(name));
        kept.map(|(name, value)| (name.clone(), value.get().to_owned())).collect()
    };
    assert_eq!(as_sent(&sent), as_sent(&came));
    assert!(!sent.keys().any(|name| own(name)));
    // What was sent is not changed again on its way through another router.
    let again = ClientRequest::read(request.endpoint, body.clone()).expect("it was fine");
    assert_eq!(again.body_for(engine), body);
}

fuzz_target!(|bytes: &[u8]| {
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        match ClientRequest::read(endpoint, Bytes::copy_from_slice(bytes)) {
            Ok(request) => {
                for engine in [Engine::Vllm, Engine::Sglang, Engine::Trtllm] {
                    check(&request, engine);
                }
                let _ = (request.session(), request.view.limit());
            }
            Err(error) => assert!(error.status().as_u16() == 400 && !error.to_string().is_empty()),
        }
    }
});
