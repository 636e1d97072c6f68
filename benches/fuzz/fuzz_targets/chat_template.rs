//! A model directory's chat template and a request's messages, apart by a zero byte: rendered or refused, in bounded time.
#![no_main]

use kvlane_engine_adapters::model::{ChatPrompt, ChatTemplate};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

fn usual() -> Vec<Map<String, Value>> {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, " é"]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]);
    serde_json::from_value(messages).expect("messages")
}

fuzz_target!(|text: &str| {
    let (template, messages) = text.split_once('\0').unwrap_or((text, ""));
    let Ok(template) = ChatTemplate::of_text(template) else { return };
    let messages = serde_json::from_str(messages).unwrap_or_else(|_| usual());
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let mut prompt = ChatPrompt::new(&messages, 1_700_000_000);
    let first = template.render(&prompt).ok();
    assert_eq!(template.render(&prompt).ok(), first, "the same every time");
    prompt.tools = Some(&tools);
    let _ = template.render(&prompt);
    (prompt.continue_final_message, prompt.add_generation_prompt) = (true, false);
    let _ = template.render(&prompt);
});
