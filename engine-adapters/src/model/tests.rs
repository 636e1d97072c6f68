use serde_json::{Map, Value, json};

use super::*;

fn messages(value: Value) -> Vec<Map<String, Value>> {
    serde_json::from_value(value).unwrap()
}

fn render(template: &str, messages_: Value, change: impl FnOnce(&mut ChatPrompt<'_>)) -> String {
    let special = [("bos_token".to_owned(), "<s>".to_owned())].into();
    let template = ChatTemplate::new(&template.into(), special).unwrap();
    let messages = messages(messages_);
    let mut prompt = ChatPrompt::new(&messages, 1_700_000_000);
    change(&mut prompt);
    template.render(&prompt).unwrap_or_else(|error| format!("error: {error}"))
}

fn check(template: &str, expected: &str) {
    let conversation = json!([{"role": "user", "content": " Hi "}]);
    assert_eq!(render(template, conversation, |_| ()), expected, "{template}");
}

#[test]
fn templates_find_what_they_know_from_python() {
    check("{{ bos_token }}{{ messages[0]['content'].strip() }}", "<s>Hi");
    check("{{ messages[0].content | trim }}|{{ missing }}", "Hi|");
    check("{% for m in messages %}\n    {{- m.role }}\n{% endfor %}", "user\n");
    check("{{ strftime_now('%d %b %Y') }}", "14 Nov 2023");
    check(
        "{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = 2 %}{% endfor %}{{ ns.n }}",
        "2",
    );
    check("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}.", ".");
    check("{{ raise_exception('roles must alternate') }}", "error: roles must alternate");
    check("{%- generation -%}  a  {%- endgeneration %} b", "a b");
    check("{{ {'b': [1, 'é'], 'a': none} | tojson }}", r#"{"b": [1, "é"], "a": null}"#);
    check(
        "{{ ['<x>', {}, [], {'a': [1]}] | tojson(indent=2) }}",
        "[\n  \"<x>\",\n  {},\n  [],\n  {\n    \"a\": [\n      1\n    ]\n  }\n]",
    );
    check(
        "{{ [1] | tojson(indent=70000) }}",
        "error: invalid operation at line 1: tojson's indent is 70000, expected at most 64",
    );
    check(
        "{{ {'b': 1, 'a': [0.00001, 1.5, 1e16]} | tojson(separators=[',', ':'], sort_keys=true) }}",
        r#"{"a":[1e-05,1.5,1e+16],"b":1}"#,
    );
    check("{{ 'é🎉' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83c\udf89""#);
    check("{{ tools is none }} {{ documents is none }}", "True True");
    check("{% if messages[0]['role'].startswith('us') and 'x' not in messages[0] %}y{% endif %}", "y");
}

#[test]
fn a_template_that_is_none_is_refused() {
    for wrong in
        ["{%}", "{%-}", "{%}} - endif %}", "{% generation", "{{ a", "{% for %}", "{% generation %}{%}"]
    {
        assert!(ChatTemplate::new(&wrong.into(), BTreeMap::new()).is_err(), "{wrong}");
    }
}

/// Templates come from model directories, and one that never ends must not keep a thread.
#[test]
fn a_template_that_does_not_end_is_ended() {
    let endless =
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}";
    check(endless, "error: the chat template takes more than 20000000 steps, expected an end");
    check(
        "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) | length }}",
        "error: invalid operation at line 1: recursion limit exceeded",
    );
}

#[test]
fn content_in_parts_becomes_one_text_unless_the_template_walks_it() {
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(render("{{ messages[0].content }}", parts.clone(), |_| ()), "a\nb");
    let walks = "{% for message in messages %}{% for part in message['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}";
    assert_eq!(render(walks, parts, |_| ()), "<a><b>");
    assert_eq!(
        render(walks, json!([{"role": "user", "content": "x"}, {"role": "user", "content": null}]), |_| ()),
        "<x>"
    );
    let other_name =
        "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}";
    assert_eq!(render(other_name, json!([{"role": "user", "content": "x"}]), |_| ()), "<x>");
    let lines = "{% for message in messages %}{% for line in message.content.split('-') %}<{{ line }}>{% endfor %}{% endfor %}";
    assert_eq!(render(lines, json!([{"role": "user", "content": "x-y"}]), |_| ()), "<x><y>");
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    assert_eq!(
        render("{{ messages[0].content }}", image, |_| ()),
        "error: messages[0].content[0] has type `image_url`, expected `text`"
    );
}

#[test]
fn the_last_message_can_be_continued() {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let conversation = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]);
    let go_on = |prompt: &mut ChatPrompt<'_>| {
        (prompt.continue_final_message, prompt.add_generation_prompt) = (true, false);
    };
    assert_eq!(render(template, conversation.clone(), go_on), "[user] Hi<end>[assistant] Well,");
    let both = render(template, conversation, |prompt| prompt.continue_final_message = true);
    assert!(both.starts_with("error: continue_final_message and add_generation_prompt"), "{both}");
}

#[test]
fn a_continued_message_keeps_its_space_unless_the_template_trims() {
    let conversation = json!([{"role": "assistant", "content": "Well, and "}]);
    let go_on = |prompt: &mut ChatPrompt<'_>| {
        (prompt.continue_final_message, prompt.add_generation_prompt) = (true, false);
    };
    let template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}Well, and ";
    assert_eq!(render(template, conversation.clone(), go_on), "Well, and ");
    let trims = "{% for m in messages %}{{ m.content.strip() }}<end>{% endfor %}";
    assert_eq!(render(trims, conversation, go_on), "Well, and");
}

#[test]
fn calls_and_tools_are_shown_as_the_engine_shows_them() {
    let conversation = json!([
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
            {"id": "2", "function": {"name": "g", "arguments": ""}}]},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ]);
    let template = "{% for m in messages %}[{{ m.content + '' }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{{ 'tool_calls' in m }}]{% endfor %}";
    assert_eq!(render(template, conversation, |_| ()), r#"[{"b": 1, "a": 2}{}True][xFalse]"#);
    let tools = [json!({"function": {"strict": true, "name": "f"}, "type": "function"})];
    let template = ChatTemplate::new(&"{{ tools | tojson }}".into(), BTreeMap::new()).unwrap();
    let prompt = ChatPrompt { tools: Some(&tools), ..ChatPrompt::new(&[], 0) };
    assert_eq!(
        template.render(&prompt).unwrap(),
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "strict": true}}]"#
    );
}

#[test]
fn variables_of_the_request_reach_the_template() {
    let kwargs = json!({"thinking": 0, "bos_token": "mine"});
    let template = ChatTemplate::new(&"{{ thinking }} {{ bos_token }}".into(), BTreeMap::new()).unwrap();
    let prompt = ChatPrompt { variables: kwargs.as_object(), ..ChatPrompt::new(&[], 0) };
    assert_eq!(template.render(&prompt).unwrap(), "0 mine");
}

#[test]
fn the_built_in_model_renders_and_tokenizes() {
    let model = Model::embedded().unwrap();
    assert_eq!((model.max_len, model.tokenizer.vocabulary()), (Some(131_072), 4096));
    assert_eq!(model.end_tokens, [model.tokenizer.id("<|eot_id|>").unwrap()]);
    let conversation = messages(json!([{"role": "user", "content": "Where is the cache?"}]));
    let text = model.template.as_ref().unwrap().render(&ChatPrompt::new(&conversation, 0)).unwrap();
    assert_eq!(
        text,
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhere is the cache?<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let tokens = model.tokenizer.encode(&text, false).unwrap();
    assert_eq!(tokens[0], model.tokenizer.id("<|begin_of_text|>").unwrap());
    let marked = model.tokenizer.encode("Hi", true).unwrap();
    assert_eq!(
        (marked[0], &marked[1..]),
        (tokens[0], model.tokenizer.encode("Hi", false).unwrap().as_slice())
    );
    let odd = "Ünïcödé 你好 🎉\r\n\t x";
    assert_eq!(model.tokenizer.decode(&model.tokenizer.encode(odd, false).unwrap()).unwrap(), odd);
}

#[test]
fn a_directory_that_is_no_model_says_which_file_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let refused = || Model::load(dir.path()).unwrap_err().to_string();
    assert!(refused().contains("tokenizer.json cannot be read"), "{}", refused());
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    assert!(refused().contains("tokenizer.json cannot be used"), "{}", refused());
    std::fs::write(dir.path().join("tokenizer.json"), EMBEDDED[0].1).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    assert!(refused().contains("tokenizer_config.json is not JSON"), "{}", refused());
    std::fs::write(dir.path().join("tokenizer_config.json"), r#"{"chat_template": "{% for %}"}"#).unwrap();
    assert!(refused().contains("chat template cannot be compiled"), "{}", refused());
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "x"}]}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), named).unwrap();
    assert!(refused().contains("a list without `default`"), "{}", refused());
}

/// The property a cache of pieces stands on, for the built-in model.
#[test]
fn pieces_have_the_tokens_of_the_whole() {
    let tokenizer = Model::embedded().unwrap().tokenizer;
    for text in [
        "",
        "plain",
        "<|begin_of_text|>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n Hello,  there <|eot_id|>\n\n",
        "no seam, then <|eot_id|> and <|eot_id|><|eot_id|>x<|eot",
        "<|start_header_id|>\u{e9}\u{1F600}<|end_header_id|>   ",
    ] {
        let whole = tokenizer.encode(text, false).unwrap();
        let pieces: Vec<&str> = tokenizer.pieces(text).collect();
        assert_eq!(pieces.concat(), text);
        let apart: Vec<_> = pieces.iter().flat_map(|piece| tokenizer.encode(piece, false).unwrap()).collect();
        assert_eq!(apart, whole, "{pieces:?}");
    }
    assert_eq!(tokenizer.pieces("a<|eot_id|>b<|eot_id|>").count(), 3);
}
