use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::Value;

use super::{CodecConfig, PADDING_MAX, TemplateChoice, TextCodec};
use crate::{DataError, Message, PromptContent};

fn builtin() -> &'static TextCodec {
    static CODEC: OnceLock<TextCodec> = OnceLock::new();
    CODEC.get_or_init(|| TextCodec::builtin().unwrap())
}

/// Qwen3's tokenizer and captures of a server that runs Qwen3. `None` if the folder `shared` is absent.
pub(super) fn qwen3() -> Option<(&'static TextCodec, PathBuf)> {
    static CODEC: OnceLock<TextCodec> = OnceLock::new();
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vllm");
    let folder = shared.join("tokenizer");
    if !folder.is_dir() {
        eprintln!("skipped: no tokenizer at {}", folder.display());
        return None;
    }
    Some((CODEC.get_or_init(|| open(&folder.to_string_lossy(), TemplateChoice::Auto).unwrap()), shared))
}

fn open(tokenizer: &str, chat_template: TemplateChoice) -> Result<TextCodec, DataError> {
    TextCodec::open(&CodecConfig { tokenizer: tokenizer.to_owned(), chat_template, unix_seconds: None })
}

fn user(content: &str) -> Message {
    Message { role: "user".to_owned(), content: content.to_owned() }
}

/// The expected result of `decode_tail`: the end of the whole decoded text.
fn tail_of_all(codec: &TextCodec, ids: &[u32], code_points: usize) -> String {
    let letters: Vec<char> = codec.decode(ids).chars().collect();
    letters[letters.len().saturating_sub(code_points)..].iter().collect()
}

#[test]
fn the_builtin_tokenizer_has_its_special_tokens_where_the_engine_expects_them() {
    let codec = builtin();
    assert_eq!(codec.encode("<|endoftext|><|im_start|><|im_end|>").unwrap(), [0, 1, 2]);
    assert_eq!(codec.eos_ids(), [0]);
    assert!((3_000..=4_096).contains(&codec.vocab_size()), "{}", codec.vocab_size());
    assert_eq!(codec.encode("1234").unwrap().len(), 4);
    assert_eq!(codec.decode(&[0, 1, 2]), "");
    assert_eq!(codec.decode_with_specials(&[2]), "<|im_end|>");
}

#[test]
fn the_builtin_template_frames_every_message() {
    let text = builtin().render(&[user("1 + 1")]).unwrap();
    assert_eq!(text, "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn a_text_prompt_is_a_message_of_the_user() {
    let as_text = builtin().encode_prompt(&PromptContent::Text("1 + 1".to_owned())).unwrap();
    let as_messages = builtin().encode_prompt(&PromptContent::Messages(vec![user("1 + 1")])).unwrap();
    assert_eq!(as_text, as_messages);
    assert_eq!(as_text.ids[0], 1);
}

#[test]
fn without_a_template_prompts_are_not_changed() {
    let codec = open("builtin", TemplateChoice::from("none")).unwrap();
    let messages =
        vec![Message { role: "system".to_owned(), content: "Be brief.".to_owned() }, user("1 + 1")];
    let encoded = codec.encode_prompt(&PromptContent::Messages(messages)).unwrap();
    assert_eq!(encoded.text, "Be brief.\n1 + 1");
    assert_eq!(encoded.ids, codec.encode("Be brief.\n1 + 1").unwrap());
}

#[test]
fn a_template_file_wins_over_the_tokenizers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.jinja");
    fs::write(&file, "Q: {{ messages[0].content }}\nA:").unwrap();
    let codec = open("builtin", TemplateChoice::from(&*file.to_string_lossy())).unwrap();
    assert_eq!(codec.render(&[user("1 + 1")]).unwrap(), "Q: 1 + 1\nA:");
    let error = open("builtin", TemplateChoice::File(folder.path().join("absent"))).unwrap_err();
    assert!(matches!(error, DataError::Read { .. }), "{error}");
}

#[test]
fn a_folder_may_hold_named_templates_objects_for_tokens_and_more_end_ids() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tokenizer/tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(tokenizer).unwrap()).unwrap();
    json["truncation"] =
        serde_json::json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = r#"{"eos_token": {"content": "<|im_end|>"}, "chat_template": [
        {"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}]}"#;
    fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [2, 0]}"#).unwrap();

    let codec = open(&folder.path().to_string_lossy(), TemplateChoice::Auto).unwrap();
    assert_eq!(codec.render(&[user("")]).unwrap(), "<|im_end|>");
    assert_eq!(codec.eos_ids(), [0, 2]);
    assert_eq!(codec.encode("12345").unwrap().len(), 5, "the file's truncation must not cut prompts");

    fs::write(folder.path().join("chat_template.jinja"), "a file of its own").unwrap();
    let codec = open(&folder.path().to_string_lossy(), TemplateChoice::Auto).unwrap();
    assert_eq!(codec.render(&[user("")]).unwrap(), "a file of its own");
}

#[test]
fn a_models_vocabulary_is_at_least_that_of_its_tokenizer() {
    let padded = builtin().vocab_size() + PADDING_MAX;
    assert_eq!(builtin().vocab_size_max(), padded);
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tokenizer/tokenizer.json");
    fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let cases = [
        (r#"{"vocab_size": 3584}"#, 3584),
        (r#"{"text_config": {"vocab_size": 3584}}"#, 3584),
        // Tokens were added to the tokenizer only.
        (r#"{"vocab_size": 100}"#, builtin().vocab_size()),
        (r#"{"model_type": "x"}"#, padded),
        (r#"{"vocab_size": 3584, "time_step_limit": [0.0, Infinity]}"#, padded),
    ];
    for (config, expected) in cases {
        fs::write(folder.path().join("config.json"), config).unwrap();
        let codec = open(&folder.path().to_string_lossy(), TemplateChoice::Auto).unwrap();
        assert_eq!(codec.vocab_size_max(), expected, "{config}");
    }
}

#[test]
fn the_error_of_a_missing_tokenizer_names_the_remedy() {
    let error = open("nobody/no-such-model", TemplateChoice::Auto).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("hf download nobody/no-such-model tokenizer.json"), "{message}");
    let error = open("/no/such/folder", TemplateChoice::Auto).unwrap_err();
    assert!(error.to_string().contains("no such folder or file"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let error = open(&folder.path().to_string_lossy(), TemplateChoice::Auto).unwrap_err();
    assert!(error.to_string().contains("has no tokenizer.json"), "{error}");
}

#[test]
fn a_broken_tokenizer_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{\"version\": 1").unwrap();
    let error = open(&folder.path().to_string_lossy(), TemplateChoice::Auto).unwrap_err();
    assert!(error.to_string().contains("/tokenizer.json: "), "{error}");
}

#[test]
fn lengths_are_those_of_the_prompts() {
    let contents =
        [PromptContent::Text("1 + 1".to_owned()), PromptContent::Messages(vec![user("What is 17 * 23?")])];
    let lengths = builtin().prompt_lengths(&contents).unwrap();
    let expected: Vec<usize> =
        contents.iter().map(|content| builtin().encode_prompt(content).unwrap().ids.len()).collect();
    assert_eq!(lengths, expected);
}

#[test]
fn qwen3_prompts_are_those_of_a_real_server() {
    let Some((codec, shared)) = qwen3() else { return };
    let capture = fs::read_to_string(shared.join("captures/render_chat.json")).unwrap();
    let capture: Value = serde_json::from_str(&capture).unwrap();
    let messages: Vec<Message> =
        serde_json::from_value(capture["request"]["body"]["messages"].clone()).unwrap();
    let expected: Vec<u32> =
        serde_json::from_value(capture["response"]["body"]["token_ids"].clone()).unwrap();
    let encoded = codec.encode_prompt(&PromptContent::Messages(messages)).unwrap();
    assert_eq!(encoded.ids, expected);
}

#[test]
fn qwen3_text_is_that_of_a_real_server() {
    let Some((codec, shared)) = qwen3() else { return };
    let capture = fs::read_to_string(shared.join("captures/detokenize.json")).unwrap();
    let capture: Value = serde_json::from_str(&capture).unwrap();
    let ids: Vec<u32> = serde_json::from_value(capture["request"]["body"]["tokens"].clone()).unwrap();
    let expected = capture["response"]["body"]["prompt"].as_str().unwrap();
    assert_eq!(codec.decode_with_specials(&ids), expected);
}

#[test]
fn qwen3_has_its_own_template_and_end() {
    let Some((codec, _)) = qwen3() else { return };
    let answered = [
        user("1 + 1"),
        Message { role: "assistant".to_owned(), content: "<think>\nx\n</think>\n\n2".to_owned() },
        user("2 + 2"),
    ];
    assert_eq!(
        codec.render(&answered).unwrap(),
        "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n2 + \
         2<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(codec.eos_ids(), [151_645]);
    assert_eq!(codec.vocab_size(), 151_669);
}

#[test]
fn a_tail_survives_a_cut_in_the_middle_of_a_character() {
    let codec = builtin();
    // No merge covers these characters. Every byte is a token, and most cuts are within a character.
    let ids = codec.encode("答案是𝟜𝟚。").unwrap();
    assert!(ids.len() > 15);
    for code_points in 0..8 {
        assert_eq!(codec.decode_tail(&ids, code_points), tail_of_all(codec, &ids, code_points));
    }
    let long = codec.encode(&"𝟜答x".repeat(5_000)).unwrap();
    assert_eq!(codec.decode_tail(&long, 301), tail_of_all(codec, &long, 301));
}

#[test]
fn the_tail_after_special_tokens_is_found() {
    let codec = builtin();
    let mut ids = codec.encode("Answer: 42").unwrap();
    ids.extend([0; 1_000]);
    assert_eq!(codec.decode_tail(&ids, 2), "42");
    assert_eq!(codec.decode_tail(&[], 5), "");
}

proptest! {
    #[test]
    fn text_survives_encoding(text in "\\PC{0,200}|[ -~\n]{0,200}") {
        prop_assume!(!text.contains("<|"));
        let ids = builtin().encode(&text).unwrap();
        prop_assert_eq!(builtin().decode(&ids), text);
    }

    #[test]
    fn a_tail_is_the_end_of_the_text(ids in prop::collection::vec(0_u32..3_441, 0..400), code_points in 0_usize..300) {
        let codec = builtin();
        prop_assert_eq!(codec.decode_tail(&ids, code_points), tail_of_all(codec, &ids, code_points));
    }

    /// All ids are single bytes, and most sequences of them are broken characters.
    #[test]
    fn a_tail_of_broken_text_is_the_end_of_it(
        ids in prop::collection::vec(3_u32..259, 0..300),
        code_points in 0_usize..100,
    ) {
        let codec = builtin();
        prop_assert_eq!(codec.decode_tail(&ids, code_points), tail_of_all(codec, &ids, code_points));
    }

    #[test]
    fn a_tail_of_qwen3_is_the_end_of_the_text(
        ids in prop::collection::vec(0_u32..152_000, 0..200),
        code_points in 0_usize..300,
    ) {
        if let Some((codec, _)) = qwen3() {
            prop_assert_eq!(codec.decode_tail(&ids, code_points), tail_of_all(codec, &ids, code_points));
        }
    }
}
