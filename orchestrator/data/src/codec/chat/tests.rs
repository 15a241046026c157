use std::fs;

use rolldock_dispatch::{FinishReason, VersionSpan};
use rolldock_trajectory::{
    Emitted, HistoryPolicy, Origin, Plan, Prompt, Request, Sampled, Trajectory, invariants,
};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::TextCodec;
use super::super::tests::qwen3;

const END: u32 = 151_645;

fn says(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn sampled(ids: Vec<u32>) -> Sampled {
    let tokens = ids.len() as u32;
    Sampled {
        logprobs: vec![-1.0; ids.len()],
        version_spans: vec![VersionSpan { version: "1".into(), start: 0, end: tokens }],
        versions_reported: true,
        finish_reason: if ids.last() == Some(&END) { FinishReason::Stop } else { FinishReason::Length },
        ids,
    }
}

/// A trajectory whose first turn answered "1 + 1" with these ids.
fn answered(codec: &TextCodec, policy: HistoryPolicy, ids: Vec<u32>, emitted: Value) -> Trajectory {
    let mut trajectory = Trajectory::new("t", policy);
    let request = Request::chat(vec![says("user", "1 + 1")], None).unwrap();
    let prompt = trajectory.prompt(&request, codec).unwrap();
    trajectory.add(&prompt, sampled(ids), &Emitted { message: emitted, ids: Vec::new() }).unwrap();
    trajectory
}

fn next(trajectory: &Trajectory, codec: &TextCodec, returned: Value, new: Value) -> Prompt {
    let request = Request::chat(vec![says("user", "1 + 1"), returned, new], None).unwrap();
    trajectory.prompt(&request, codec).unwrap()
}

const BEGUN: &str = "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n";
const THOUGHT: &str = "<think>\none and one\n</think>\n\n2<|im_end|>";
const ASKED: &str = "<|im_start|>user\nand 3?<|im_end|>\n<|im_start|>assistant\n";

fn thought() -> Value {
    json!({ "role": "assistant", "content": "2", "reasoning": "one and one" })
}

#[test]
fn append_keeps_the_reasoning_of_qwen3() {
    let Some((codec, _)) = qwen3() else { return };
    let ids = codec.encode(THOUGHT).unwrap();
    let trajectory = answered(codec, HistoryPolicy::Append, ids, thought());
    let prompt = next(&trajectory, codec, says("assistant", "2"), says("user", "and 3?"));
    assert_eq!(prompt.origin(), Origin::Spliced);
    assert_eq!(codec.decode_with_specials(prompt.ids()), format!("{BEGUN}{THOUGHT}\n{ASKED}"));
    assert_eq!(prompt.ids(), codec.encode(&format!("{BEGUN}{THOUGHT}\n{ASKED}")).unwrap());
}

#[test]
fn template_forks_where_qwen3_drops_reasoning() {
    let Some((codec, _)) = qwen3() else { return };
    let ids = codec.encode(THOUGHT).unwrap();
    let mut trajectory = answered(codec, HistoryPolicy::Template, ids, thought());
    let result = next(&trajectory, codec, says("assistant", "2"), says("tool", "3"));
    assert_eq!(result.origin(), Origin::Spliced, "reasoning stays before a tool's result");
    assert_eq!(
        codec.decode_with_specials(result.ids()),
        format!(
            "{BEGUN}{THOUGHT}\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n\
             <|im_start|>assistant\n"
        )
    );
    let prompt = next(&trajectory, codec, says("assistant", "2"), says("user", "and 3?"));
    assert_eq!(prompt.origin(), Origin::Dropped);
    assert_eq!(codec.decode_with_specials(prompt.ids()), format!("{BEGUN}2<|im_end|>\n{ASKED}"));
    let turn = trajectory.add(&prompt, sampled(vec![20, END]), &Emitted::text("5")).unwrap();
    let (base, shared) = trajectory.turn(turn).unwrap().base().unwrap();
    assert_eq!((base.0, shared as usize), (0, codec.encode(BEGUN).unwrap().len()));
    let rows = trajectory.rows();
    assert_eq!(rows.len(), 2, "each path is a row");
}

#[test]
fn a_turn_that_was_cut_off_gets_its_end() {
    let Some((codec, _)) = qwen3() else { return };
    let ids = codec.encode("<think>\none and").unwrap();
    let trajectory = answered(codec, HistoryPolicy::Append, ids, says("assistant", "<think>\none and"));
    let prompt = next(&trajectory, codec, says("assistant", "<think>\none and"), says("user", "and 3?"));
    let text = codec.decode_with_specials(prompt.ids());
    assert_eq!(text, format!("{BEGUN}<think>\none and<|im_end|>\n{ASKED}"));
}

#[test]
fn a_prompt_with_tools_has_the_ids_of_a_real_server() {
    let Some((codec, shared)) = qwen3() else { return };
    let text = fs::read_to_string(shared.join("captures/agent_endpoints.json")).unwrap();
    let exchanges: Vec<Value> = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for exchange in exchanges.iter().filter(|exchange| exchange["path"] == "/v1/chat/completions/render") {
        let asked = &exchange["request"];
        let Some(expected) = exchange["response"]["token_ids"].as_array() else { continue };
        let expected: Vec<u32> = expected.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let messages = asked["messages"].as_array().unwrap().clone();
        let request = Request::chat(messages, asked.get("tools").cloned()).unwrap();
        assert_eq!(Trajectory::render_whole(&request, codec).unwrap(), expected);
        compared += 1;
    }
    assert!(compared > 0, "the recording has no rendered prompt");
}

/// Ids as a random model samples them, without special tokens.
fn random_ids(codec: &TextCodec, seed: u64, tokens: u64) -> Vec<u32> {
    let words = u64::from(codec.vocab_size()).min(151_643);
    (0..tokens).map(|token| (xxh3_64_with_seed(&token.to_le_bytes(), seed) % words) as u32).collect()
}

/// Random ids rarely survive decoding and encoding, so a prompt that was encoded again is noticed: in 26 % of
/// runs of 8 ids, and in nearly all runs of 128.
#[test]
fn a_re_encoder_is_caught_by_random_ids_of_qwen3() {
    let Some((codec, _)) = qwen3() else { return };
    for (tokens, runs, expected) in [(8, 400, 0.20..0.33), (128, 100, 0.97..1.01)] {
        let mut changed = 0;
        for run in 0..runs {
            let ids = random_ids(codec, run, tokens);
            let text = codec.decode_with_specials(&ids);
            let trajectory = answered(codec, HistoryPolicy::Append, ids.clone(), says("assistant", &text));
            let messages = vec![says("user", "1 + 1"), says("assistant", &text), says("user", "and 3?")];
            let request = Request::chat(messages, None).unwrap();
            let Plan::Ready(prompt) = trajectory.plan(&request, codec).unwrap() else { panic!("a fork") };
            assert_eq!(invariants::spliced(&trajectory, &prompt), Ok(()));
            let begun = codec.encode(BEGUN).unwrap();
            assert_eq!(&prompt.ids()[begun.len()..begun.len() + ids.len()], ids);

            let encoded_again = codec.encode(&text).unwrap() != ids;
            changed += u32::from(encoded_again);
            if encoded_again {
                let Plan::Whole(whole) = fresh(&request, codec) else { panic!("nothing is stored") };
                let other = whole.with_ids(Trajectory::render_whole(&request, codec).unwrap());
                assert_ne!(other.ids(), prompt.ids());
            }
        }
        let share = f64::from(changed) / runs as f64;
        assert!(expected.contains(&share), "{share} of runs of {tokens} ids change, expected {expected:?}");
    }
}

/// The plan of a trajectory without turns.
fn fresh(request: &Request, codec: &TextCodec) -> Plan {
    Trajectory::new("t", HistoryPolicy::Append).plan(request, codec).unwrap()
}
