use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::choice::VOCAB_SIZE_UNKNOWN;
use super::*;
use crate::VersionSpan;

mod named;
mod runs;

/// Recorded traffic of a real server, which is not part of the project.
fn capture(name: &str) -> Option<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vllm/captures").join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: no recorded traffic at {}", path.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn read_in_chunks(
    body: &[u8],
    expected: &Expected,
    chunk_bytes: usize,
) -> Result<CheckedAnswer, AnswerError> {
    let mut reader = AnswerReader::new(expected.clone());
    for chunk in body.chunks(chunk_bytes) {
        reader.feed(chunk)?;
    }
    reader.finish()
}

fn read(body: &Value, expected: &Expected) -> Result<CheckedAnswer, AnswerError> {
    read_in_chunks(body.to_string().as_bytes(), expected, usize::MAX)
}

fn tokens(prompt_ids: &[u32], n: u32, max_tokens: u32) -> Expected {
    Expected {
        request_id: "5f0c1a2b-7-0-1".into(),
        prompt_ids: prompt_ids.into(),
        n,
        max_tokens,
        vocab_size: VOCAB_SIZE_UNKNOWN,
        content: Content::Tokens,
    }
}

fn u32s(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Reads the answer with a JSON tree.
fn samples_by_tree(body: &Value) -> Vec<SampleOutput> {
    let choices = body["choices"].as_array().unwrap();
    let sample = |choice: &Value| {
        let logprobs = &choice["logprobs"];
        let numbers: Vec<&Value> = match logprobs["content"].as_array() {
            Some(content) => content.iter().map(|token| &token["logprob"]).collect(),
            None => logprobs["token_logprobs"].as_array().unwrap().iter().collect(),
        };
        let span = |span: &Value| VersionSpan {
            version: span["version"].as_str().unwrap().into(),
            start: span["start"].as_u64().unwrap() as u32,
            end: span["end"].as_u64().unwrap() as u32,
        };
        SampleOutput {
            response_ids: u32s(&choice["token_ids"]),
            logprobs: numbers.iter().map(|number| number.to_string().parse().unwrap()).collect(),
            finish_reason: match choice["finish_reason"].as_str().unwrap() {
                "stop" => FinishReason::Stop,
                "length" => FinishReason::Length,
                other => panic!("unexpected finish_reason={other}"),
            },
            version_spans: choice["weight_versions"].as_array().into_iter().flatten().map(span).collect(),
        }
    };
    choices.iter().map(sample).collect()
}

/// The prompt of a recorded answer: the echoed prompt, or the prompt of the request if there is no echo.
fn prompt_of(recorded: &Value, body: &Value) -> Vec<u32> {
    let echo = body.get("prompt_token_ids").or(body.pointer("/choices/0/prompt_token_ids"));
    let asked = recorded.pointer("/request/body/token_ids");
    echo.filter(|ids| ids.is_array()).or(asked).map(u32s).unwrap_or_default()
}

#[test]
fn recorded_answers_are_read_as_a_tree_reads_them() {
    // An abort was sent for the last two answers, but it arrived after their end.
    let whole = [
        ("completions_tokens_n4.json", 4),
        ("completions_stop_token_id.json", 1),
        ("generate_basic.json", 1),
        ("generate_noheader.json", 3),
        ("tokensonly_generate.json", 1),
        ("aborted_generate.json", 1),
        ("aborted_unknown_id.json", 1),
    ];
    for (name, n) in whole {
        let Some(recorded) = capture(name) else { return };
        let body = recorded.pointer("/response/body").unwrap_or(&recorded);
        let expected = tokens(&prompt_of(&recorded, body), n, 8192);
        let by_tree = CheckedAnswer::Samples(samples_by_tree(body));
        assert!(read(body, &expected).unwrap() == by_tree, "{name}");
        let bytes = serde_json::to_vec_pretty(body).unwrap();
        for chunk_bytes in [1, 7, 1024] {
            assert!(
                read_in_chunks(&bytes, &expected, chunk_bytes).unwrap() == by_tree,
                "{name} by {chunk_bytes}"
            );
        }
    }
}

#[test]
fn recorded_weight_versions_are_kept() {
    let Some(mut body) = capture("generate_keep_weight_versions.json") else { return };
    // This answer was recorded without log-probabilities.
    body["choices"][0]["logprobs"] = json!({"token_logprobs": vec![-1.0; 700]});
    let CheckedAnswer::Samples(samples) = read(&body, &tokens(&[], 1, 700)).unwrap() else {
        panic!("not samples")
    };
    let spans: Vec<_> =
        samples[0].version_spans.iter().map(|span| (&*span.version, span.start, span.end)).collect();
    assert_eq!(spans, [("v-wait", 0, 483), ("step-42", 483, 700)]);
}

#[test]
fn recorded_aborts_are_aborts_with_their_tokens() {
    let cases = [
        ("aborted_comp_n1.json", 1, 179),
        ("aborted_comp_n2.json", 2, 349),
        ("aborted_generate_n1.json", 1, 182),
        ("aborted_generate_n3.json", 3, 376),
    ];
    for (name, n, count) in cases {
        let Some(body) = capture(name) else { return };
        let expected = tokens(&prompt_of(&body, &body), n, 2048);
        let found = read(&body, &expected);
        let Ok(CheckedAnswer::Aborted { tokens, parts }) = found else { panic!("{name}: {found:?}") };
        assert_eq!(tokens, count, "{name}");
        assert_eq!(parts.iter().map(|part| part.response_ids.len() as u64).sum::<u64>(), count, "{name}");
        for (part, choice) in parts.iter().zip(body["choices"].as_array().unwrap()) {
            assert_eq!(part.response_ids, u32s(&choice["token_ids"]), "{name}");
            assert_eq!(part.logprobs.len(), part.response_ids.len(), "{name}");
            assert_eq!(part.finish_reason, None, "{name}");
            assert_eq!(part.version_spans.is_empty(), name.contains("comp"), "{name}");
        }
    }
}

#[test]
fn recorded_answers_without_logprobs_or_ids_are_failed_samples() {
    let Some(recorded) = capture("generate_bad_sp.json") else { return };
    let found = read(&recorded["response"]["body"], &tokens(&[], 1, 16));
    assert_eq!(found, Err(AnswerError::Logprobs { index: 0, tokens: 3, logprobs: 0 }));
    let recorded = capture("completions_minimal.json").unwrap();
    let found = read(&recorded["response"]["body"], &tokens(&[], 1, 16));
    assert_eq!(found, Err(AnswerError::NoTokens { index: 0 }));
    let as_text = Expected { content: Content::Text, ..tokens(&[], 1, 16) };
    let texts = read(&recorded["response"]["body"], &as_text).unwrap();
    assert_eq!(texts, CheckedAnswer::Texts(vec![("£翥.region.Selection".to_owned(), FinishReason::Length)]));
}

/// An answer of the generate endpoint with one sample of two tokens. Tests corrupt it.
fn generated() -> Value {
    json!({
        "request_id": "generate-tokens-x", "usage": {"prompt_tokens": 2}, "prompt_token_ids": [5, 6],
        "choices": [{
            "index": 0, "finish_reason": "stop", "stop_reason": null, "token_ids": [7, 8],
            "weight_versions": [{"version": "default", "start": 0, "end": 2}],
            "logprobs": {"content": [
                {"token_id": 7, "logprob": -0.5, "rank": 1, "top_logprobs": [{"logprob": -9999.0, "rank": null}]},
                {"token_id": 8, "logprob": -1.5, "rank": 2, "top_logprobs": []},
            ]},
        }],
    })
}

fn spoiled(pointer: &str, value: Value) -> Result<CheckedAnswer, AnswerError> {
    let mut body = generated();
    (body["id"], body["request_id"]) = (json!(null), json!(null));
    *body.pointer_mut(pointer).unwrap() = value;
    read(&body, &tokens(&[5, 6], 1, 4))
}

#[test]
fn a_sound_answer_passes_and_unread_members_do_not_matter() {
    let Ok(CheckedAnswer::Samples(samples)) = read(&generated(), &tokens(&[5, 6], 1, 4)) else {
        panic!("refused")
    };
    assert_eq!(samples[0].response_ids, [7, 8]);
    assert_eq!(samples[0].logprobs, [-0.5, -1.5]);
    assert!(spoiled("/usage", json!([[{"a": 1}], "choices"])).is_ok());
    assert!(spoiled("/choices/0/weight_versions", json!([])).is_ok());
}

#[test]
fn poison_in_every_form_is_named_with_its_token() {
    for (pointer, value) in [
        ("/choices/0/logprobs/content/1/logprob", json!(-9999.0)),
        ("/choices/0/logprobs/content/1/logprob", json!(null)),
        ("/choices/0/logprobs/content/1/logprob", json!(-1e300)),
        ("/choices/0/logprobs/content/1/logprob", json!(1.5)),
        ("/choices/0/logprobs", json!({"token_logprobs": [-0.5, null]})),
        ("/choices/0/logprobs", json!({"token_logprobs": [-0.5, -9999.0]})),
    ] {
        assert!(matches!(spoiled(pointer, value), Err(AnswerError::Poisoned { token: 1, .. })), "{pointer}");
    }
    // Here the rank comes after the logprob, so the logprob of the token has already been read.
    assert!(matches!(
        spoiled("/choices/0/logprobs/content/0/rank", json!(null)),
        Err(AnswerError::Poisoned { .. })
    ));
}

#[test]
fn answers_to_other_requests_of_the_run_are_refused() {
    for found in ["generate-tokens-5f0c1a2b-7-0-12", "cmpl-5f0c1a2b-7-0-0", "5f0c1a2b-17-0-1", "5f0c1a2b"] {
        for name in ["/id", "/request_id"] {
            let refused = spoiled(name, json!(found));
            assert_eq!(refused, Err(AnswerError::Request { found: found.to_owned() }));
        }
    }
    for found in
        ["generate-tokens-5f0c1a2b-7-0-1", "cmpl-5f0c1a2b-7-0-1-0", "5634ed2fab374494b15a95f99f0f8188", ""]
    {
        assert!(spoiled("/request_id", json!(found)).is_ok(), "{found}");
    }
    assert!(spoiled("/id", json!(7)).is_ok() && spoiled("/id", json!(null)).is_ok());
}

#[test]
fn wrong_counts_echoes_and_spans_are_each_their_own_error() {
    let short = json!([{"logprob": -0.5, "rank": 1}]);
    assert_eq!(
        spoiled("/choices/0/logprobs/content", short),
        Err(AnswerError::Logprobs { index: 0, tokens: 2, logprobs: 1 })
    );
    assert_eq!(spoiled("/prompt_token_ids", json!([5, 7])), Err(AnswerError::Prompt { position: 1 }));
    assert_eq!(spoiled("/prompt_token_ids", json!([5])), Err(AnswerError::Prompt { position: 1 }));
    assert_eq!(spoiled("/prompt_token_ids", json!([5, 6, 7])), Err(AnswerError::Prompt { position: 2 }));
    assert_eq!(spoiled("/choices", json!([])), Err(AnswerError::Choices { expected: 1, found: 0 }));
    assert_eq!(spoiled("/choices/0/index", json!(1)), Err(AnswerError::Choices { expected: 1, found: 1 }));
    assert_eq!(
        spoiled("/choices/0/token_ids", json!([1, 2, 3, 4, 5])),
        Err(AnswerError::TooMany { member: "token_ids", max_tokens: 4 })
    );
    assert_eq!(spoiled("/choices/0/token_ids", json!([])), Err(AnswerError::NoTokens { index: 0 }));
    assert_eq!(
        spoiled("/choices/0/finish_reason", json!("error")),
        Err(AnswerError::Finish { index: 0, reason: "error".to_owned() })
    );
    for spans in [
        json!([{"version": "a", "start": 0, "end": 1}]),
        json!([{"version": "a", "start": 1, "end": 2}]),
        json!([{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 1, "end": 2}]),
        json!([{"version": "a", "start": 0, "end": 0}, {"version": "b", "start": 0, "end": 2}]),
    ] {
        let found = spoiled("/choices/0/weight_versions", spans);
        assert_eq!(found, Err(AnswerError::Spans { index: 0, tokens: 2 }));
    }
}

#[test]
fn an_answer_that_was_ended_early_has_parts_that_pass_the_checks_or_none() {
    let aborted = |pointer: &str, value: Value| {
        let mut body = generated();
        body["choices"][0]["finish_reason"] = json!("abort");
        *body.pointer_mut(pointer).unwrap() = value;
        match read(&body, &tokens(&[5, 6], 1, 4)) {
            Ok(CheckedAnswer::Aborted { parts, .. }) => parts,
            other => panic!("{pointer}: {other:?}"),
        }
    };
    let sound = aborted("/usage", json!(null));
    assert_eq!((sound.len(), &sound[0].response_ids[..]), (1, &[7, 8][..]));
    assert_eq!(sound[0].version_spans.len(), 1);
    // The sample ended before its first token, like a request that a pause held back.
    let held = json!({"index": 0, "finish_reason": "abort", "token_ids": [], "logprobs": null});
    assert_eq!(aborted("/choices/0", held), [PartialOutput::default()]);
    let one = json!([{"logprob": -0.5, "rank": 1}]);
    assert!(aborted("/choices/0/logprobs/content", one).is_empty());
    let uncovered = json!([{"version": "a", "start": 0, "end": 1}]);
    assert!(aborted("/choices/0/weight_versions", uncovered).is_empty());
    assert!(aborted("/choices/0/token_ids", json!(null)).is_empty());
}

#[test]
fn members_of_another_type_are_named() {
    for (pointer, value) in [
        ("/choices", json!({})),
        ("/choices", json!(null)),
        ("/choices/0", json!(3)),
        ("/choices/0/token_ids", json!(["7", "8"])),
        ("/choices/0/token_ids", json!([-7, 8])),
        ("/choices/0/token_ids", json!([7.0, 8])),
        ("/choices/0/token_ids", json!([[7], 8])),
        ("/choices/0/index", json!("0")),
        ("/choices/0/logprobs", json!(true)),
        ("/choices/0/logprobs/content/0/logprob", json!("-0.5")),
        ("/choices/0/weight_versions/0", json!({"start": 0, "end": 2})),
        ("", json!([])),
        ("", json!(null)),
    ] {
        let found = spoiled(pointer, value.clone());
        assert!(matches!(found, Err(AnswerError::Shape { .. })), "{pointer} = {value}: {found:?}");
    }
}

/// Samples, and the bodies that encode them in the two dialects. Members are in any order, with unknown
/// members among them.
#[derive(Debug, Clone)]
struct Scenario {
    samples: Vec<SampleOutput>,
    prompt_ids: Vec<u32>,
    body: String,
}

fn any_sample() -> impl Strategy<Value = SampleOutput> {
    let columns = prop::collection::vec((any::<u32>(), -60.0_f32..0.0), 1..40);
    (columns, any::<bool>(), 0_u32..40).prop_map(|(columns, stopped, cut)| {
        let (response_ids, logprobs): (Vec<u32>, Vec<f32>) = columns.into_iter().unzip();
        let tokens = response_ids.len() as u32;
        let span = |version: &str, start, end| VersionSpan { version: version.into(), start, end };
        let version_spans = match cut {
            0 => vec![span("v\"1\\", 0, tokens)],
            cut if cut < tokens => vec![span("one", 0, cut), span("zwei ü", cut, tokens)],
            _ => vec![],
        };
        let finish_reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
        SampleOutput { response_ids, logprobs, finish_reason, version_spans }
    })
}

fn object(members: Vec<(String, String)>) -> String {
    let written: Vec<String> =
        members.iter().map(|(name, value)| format!("{}: {value}", json!(name))).collect();
    format!("{{{}}}", written.join(" , "))
}

fn choice_members(index: usize, sample: &SampleOutput, generate: bool, noise: &str) -> Vec<(String, String)> {
    // The engine converts an f32 to a double, and writes the shortest digits of the double.
    let written = |logprob: &f32| format!("{:?}", f64::from(*logprob));
    let logprobs = if generate {
        let named = sample.response_ids.iter().zip(&sample.logprobs);
        let content: Vec<String> = named
            .map(|(id, logprob)| {
                let logprob = written(logprob);
                format!(
                    r#"{{"top_logprobs":[{{"rank":null}}],"rank":3,"logprob":{logprob},"token_id":{id}}}"#
                )
            })
            .collect();
        format!(r#"{{"content":[{}]}}"#, content.join(","))
    } else {
        let numbers: Vec<String> = sample.logprobs.iter().map(written).collect();
        format!(r#"{{"tokens":[{}],"token_logprobs":[{}]}}"#, json!(noise), numbers.join(", "))
    };
    let spans: Vec<Value> = sample
        .version_spans
        .iter()
        .map(|span| json!({"end": span.end, "version": &*span.version, "start": span.start}))
        .collect();
    [
        ("index", index.to_string()),
        ("token_ids", json!(sample.response_ids).to_string()),
        ("logprobs", logprobs),
        ("finish_reason", json!(sample.finish_reason.as_str()).to_string()),
        ("weight_versions", json!(spans).to_string()),
        ("text", json!(noise).to_string()),
        // No name of the protocol begins with this prefix.
        (&format!("_{noise}"), json!({"token_ids": [1, 2], "x": noise}).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let parts = (
        prop::collection::vec(any_sample(), 1..4),
        prop::collection::vec(any::<u32>(), 0..10),
        any::<bool>(),
        "(\\PC|[\"\\\\\n\t]){0,20}",
    );
    parts
        .prop_flat_map(|(samples, prompt_ids, generate, noise)| {
            let choices: Vec<_> = samples
                .iter()
                .enumerate()
                .map(|(index, sample)| {
                    Just(choice_members(index, sample, generate, &noise)).prop_shuffle().prop_map(object)
                })
                .collect();
            (Just(samples), Just(prompt_ids), Just(noise), choices.prop_shuffle())
        })
        .prop_flat_map(|(samples, prompt_ids, noise, choices)| {
            let members = vec![
                ("choices".to_owned(), format!("[{}]", choices.join(","))),
                ("prompt_token_ids".to_owned(), json!(prompt_ids).to_string()),
                (format!("_{noise}"), json!({"choices": [noise]}).to_string()),
            ];
            let body = Just(members).prop_shuffle().prop_map(object);
            (Just(samples), Just(prompt_ids), body)
        })
        .prop_map(|(samples, prompt_ids, body)| Scenario { samples, prompt_ids, body })
}

proptest! {
    #[test]
    fn columns_come_back_exactly_in_any_order_of_members_and_any_split(
        scenario in any_scenario(),
        chunk_bytes in 1_usize..200,
    ) {
        let expected = tokens(&scenario.prompt_ids, scenario.samples.len() as u32, 40);
        let found = read_in_chunks(scenario.body.as_bytes(), &expected, chunk_bytes);
        prop_assert_eq!(found, Ok(CheckedAnswer::Samples(scenario.samples)));
    }

    #[test]
    fn a_body_cut_anywhere_is_an_error(scenario in any_scenario(), share in 0.0..1.0_f64) {
        let body = scenario.body.as_bytes();
        let cut = (body.len() as f64 * share) as usize;
        let expected = tokens(&scenario.prompt_ids, scenario.samples.len() as u32, 40);
        prop_assert!(read_in_chunks(&body[..cut], &expected, 64).is_err());
    }

    #[test]
    fn any_bytes_end_in_an_answer_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200), chunk_bytes in 1_usize..50) {
        let expected = tokens(&[1], 1, 8);
        prop_assert!(read_in_chunks(&body, &expected, chunk_bytes).is_err());
    }

    #[test]
    fn a_changed_byte_never_panics_and_never_leaves_a_hole(
        scenario in any_scenario(), position: prop::sample::Index, byte: u8,
    ) {
        let mut body = scenario.body.into_bytes();
        let at = position.index(body.len());
        body[at] = byte;
        let expected = tokens(&scenario.prompt_ids, scenario.samples.len() as u32, 40);
        if let Ok(CheckedAnswer::Samples(samples)) = read_in_chunks(&body, &expected, 64) {
            prop_assert_eq!(samples.len(), scenario.samples.len());
            for sample in samples {
                prop_assert_eq!(sample.response_ids.len(), sample.logprobs.len());
                prop_assert!(sample.logprobs.iter().all(|logprob| logprob.is_finite()));
            }
        }
    }
}
