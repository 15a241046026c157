use serde_json::json;

use super::*;

fn script(value: &serde_json::Value) -> Result<Script, SimError> {
    Script::from_json(&serde_json::to_vec(value).unwrap(), &TextCodec::builtin().unwrap())
}

fn prompt(codec: &TextCodec, turns: usize) -> Vec<u32> {
    let text: String = (0..turns).map(|_| "<|im_start|>assistant\nx<|im_end|>\n").collect();
    codec.encode(&format!("<|im_start|>user\nassistant<|im_end|>\n{text}<|im_start|>assistant\n")).unwrap()
}

#[test]
fn the_number_of_earlier_turns_in_the_prompt_chooses_the_turn() {
    let codec = TextCodec::builtin().unwrap();
    let made = script(
        &json!({ "turns": [{ "ids": [5] }, { "pieces": ["<t", "ool_ca", "ll>"] }, { "ids": [7, 8] }] }),
    );
    let made = made.unwrap();
    assert_eq!(made.scripted(&prompt(&codec, 0), 1).unwrap()[..], [5]);
    assert_eq!(made.scripted(&prompt(&codec, 2), 1).unwrap()[..], [7, 8]);
    assert_eq!(made.scripted(&prompt(&codec, 9), 1).unwrap()[..], [7, 8]);
    assert_eq!(made.scripted(&[], 1).unwrap()[..], [5]);
    let split = made.scripted(&prompt(&codec, 1), 1).unwrap();
    assert_eq!(codec.decode(&split), "<tool_call>");
    assert_ne!(
        split[..],
        codec.encode("<tool_call>").unwrap()[..],
        "the tokenizer would choose other tokens"
    );
}

#[test]
fn a_response_that_was_cut_off_is_continued() {
    let codec = TextCodec::builtin().unwrap();
    let made =
        script(&json!({ "turns": [{ "variants": [{ "ids": [5, 6, 7] }, { "ids": [5, 8] }] }] })).unwrap();
    let mut begun = prompt(&codec, 0);
    begun.extend([5, 6]);
    for seed in 0..8 {
        assert_eq!(made.scripted(&begun, seed).unwrap()[..], [7]);
    }
    begun.push(9);
    assert!(made.scripted(&begun, 1).unwrap().len() >= 2, "another beginning is not continued");
}

#[test]
fn the_seed_chooses_a_variant() {
    let made = script(&json!({ "turns": [{ "variants": [{ "ids": [5] }, { "ids": [6] }] }] })).unwrap();
    let chosen: Vec<u32> = (0..32).map(|seed| made.scripted(&[1], seed).unwrap()[0]).collect();
    assert!(chosen.contains(&5) && chosen.contains(&6), "{chosen:?}");
    let again: Vec<u32> = (0..32).map(|seed| made.scripted(&[1], seed).unwrap()[0]).collect();
    assert_eq!(chosen, again);
}

#[test]
fn a_broken_script_is_refused_with_its_reason() {
    for (broken, reason) in [
        (json!({ "turns": [] }), "turns must have 1 to 4096 entries, got 0"),
        (json!({ "turns": [{ "variants": [] }] }), "turn 0 must have 1 to 4096 variants, got 0"),
        (json!({ "turns": [{ "ids": [5] }, { "ids": [9999] }] }), "turn 1 must have ids below"),
        (json!({ "turns": [{ "ids": [5] }], "end": "no token" }), "end must be a token of the vocabulary"),
        (json!({ "turns": [{ "ids": [5] }], "marker": "" }), "marker must not be empty"),
        (json!({ "turns": [{ "words": [] }] }), "did not match any variant"),
    ] {
        let said = script(&broken).unwrap_err().to_string();
        assert!(said.contains(reason), "{said}");
    }
}
