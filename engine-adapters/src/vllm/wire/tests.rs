use base64::Engine;

use super::*;

fn sample() -> Vec<OutEvent<'static>> {
    vec![
        OutEvent::Stored {
            names: vec![0xf000_0000_0000_0001, 2],
            parent: None,
            tokens: &[0, 1, 2, 3, 4, 5, 6, 7],
            block_tokens: 4,
            lora_name: None,
            cache_salt: Some("tenant-a"),
            session_id: None,
        },
        OutEvent::Removed { name: 2 },
        OutEvent::Cleared,
    ]
}

/// The three sample events as vLLM's own structs of that version encode them.
fn encoded_by(version: &str) -> String {
    let lines = include_str!("../../../tests/fixtures/vllm/struct-encodings-by-version.jsonl").lines();
    let versions = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let found = versions.into_iter().find(|line| line["vllm_version"] == version).unwrap();
    found["payload_int_b64"].as_str().unwrap().to_owned()
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn batches_are_byte_for_byte_what_vllm_encodes() {
    for (spelling, versions) in [
        (Spelling::Maps, ["0.24.0", "0.26.0", "0.29.0", "0.32.0"].as_slice()),
        (Spelling::Arrays, ["0.22.1", "0.23.0"].as_slice()),
    ] {
        let encoder = Encoder { spelling, ..Encoder::default() };
        let ours = base64(&encoder.batch(1_700_000_000.25, &sample()));
        for version in versions {
            assert_eq!(ours, encoded_by(version), "vLLM {version}");
        }
    }
}

#[test]
fn a_digest_ends_in_the_number_it_stands_for() {
    let encoder = Encoder { naming: Naming::Bytes, ..Encoder::default() };
    let batch = encoder.batch(0.0, &[OutEvent::Removed { name: 0x0102_0304_0506_0708 }]);
    let at = batch.windows(2).position(|bytes| bytes == [0xc4, 32]).unwrap() + 2;
    assert_eq!(batch[at + 24..at + 32], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_ne!(digest(1)[..24], digest(2)[..24]);
}

#[test]
fn an_adapter_marks_every_block_and_a_salt_only_the_first_of_a_prompt() {
    let keys = |parent, salt| {
        let mut to = Writer { buffer: ByteBuf::new(), naming: Naming::Ints };
        to.extra_keys(2, parent, Some("ad1"), salt);
        to.buffer.into_vec()
    };
    assert_eq!(
        keys(true, Some("s")),
        [0x92, 0x92, 0xa3, b'a', b'd', b'1', 0xa1, b's', 0x91, 0xa3, b'a', b'd', b'1']
    );
    assert_eq!(keys(false, Some("s")), keys(true, None));
}
