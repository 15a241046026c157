#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::answer::AnswerReader;
use super::super::choice::{Content, VOCAB_SIZE_UNKNOWN};
use super::*;
use crate::{FinishReason, SampleOutput, VersionSpan};

const PROMPT: [u32; 2] = [5, 6];

fn expected(n: u32, max_tokens: u32) -> Expected {
    Expected {
        request_id: "r".into(),
        prompt_ids: PROMPT.into(),
        n,
        max_tokens,
        vocab_size: VOCAB_SIZE_UNKNOWN,
        content: Content::Tokens,
    }
}

fn read(
    bytes: &[u8],
    expected: &Expected,
    piece_bytes: usize,
) -> (Result<CheckedAnswer, AnswerError>, Progress) {
    let progress = Progress::new();
    let mut reader = StreamReader::new(expected.clone(), progress.clone());
    let fed = bytes.chunks(piece_bytes).try_for_each(|piece| reader.feed(piece));
    (fed.and_then(|()| reader.finish()), progress)
}

/// An engine's choice with the tokens `range` of a sample. The choice with the last tokens has the sample's
/// finish reason.
fn choice(index: usize, sample: &SampleOutput, range: std::ops::Range<usize>, generate: bool) -> Value {
    let is_first = range.start == 0;
    let is_last = range.end == sample.response_ids.len();
    let logprobs = &sample.logprobs[range.clone()];
    let named = sample.response_ids[range.clone()].iter().zip(logprobs);
    let content: Vec<Value> =
        named.map(|(id, logprob)| json!({"token_id": id, "logprob": logprob, "rank": 1})).collect();
    let spans = sample.version_spans.iter();
    let spans: Vec<Value> =
        spans.map(|span| json!({"version": &*span.version, "start": span.start, "end": span.end})).collect();
    let logprobs = if generate { json!({"content": content}) } else { json!({"token_logprobs": logprobs}) };
    json!({
        "index": index, "text": "data: x\n\n", "token_ids": sample.response_ids[range], "logprobs": logprobs,
        "finish_reason": is_last.then_some(sample.finish_reason.as_str()),
        "weight_versions": (generate && is_last).then_some(spans),
        "prompt_token_ids": (!generate && is_first).then_some(PROMPT),
    })
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn choices(choices: &[Value]) -> String {
    event(&json!({"id": "x", "usage": null, "choices": choices}))
}

/// Samples, their answer in one piece, and the events of the same answer.
#[derive(Debug, Clone)]
struct Scenario {
    samples: Vec<SampleOutput>,
    whole: String,
    events: Vec<String>,
}

impl Scenario {
    fn bytes(&self) -> Vec<u8> {
        self.events.concat().into_bytes()
    }

    fn expected(&self) -> Expected {
        expected(self.samples.len() as u32, 40)
    }
}

fn any_sample(generate: bool) -> impl Strategy<Value = SampleOutput> {
    let columns = prop::collection::vec((any::<u32>(), -60.0_f32..0.0), 1..30);
    (columns, any::<bool>(), 0_u32..30).prop_map(move |(columns, stopped, cut)| {
        let (response_ids, logprobs): (Vec<u32>, Vec<f32>) = columns.into_iter().unzip();
        let tokens = response_ids.len() as u32;
        let span = |version: &str, start, end| VersionSpan { version: version.into(), start, end };
        let version_spans = match cut {
            _ if !generate => vec![],
            cut if 0 < cut && cut < tokens => vec![span("one", 0, cut), span("two", cut, tokens)],
            _ => vec![span("one", 0, tokens)],
        };
        let finish_reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
        SampleOutput { response_ids, logprobs, finish_reason, version_spans }
    })
}

/// Cuts the samples at `cuts` and interleaves the pieces by `turns`.
fn scenario(samples: Vec<SampleOutput>, generate: bool, cuts: &[usize], turns: &[usize]) -> Scenario {
    let mut cut = cuts.iter().cycle();
    let mut queues: Vec<Vec<Value>> = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let (mut pieces, mut start) = (Vec::new(), 0);
        while start < sample.response_ids.len() {
            let end = (start + cut.next().unwrap()).min(sample.response_ids.len());
            pieces.push(choice(index, sample, start..end, generate));
            start = end;
        }
        queues.push(pieces);
    }
    let mut events = vec![": waiting\n\n".to_owned()];
    let mut turn = turns.iter().cycle();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let from = turn.next().unwrap() % queues.len();
        if queues[from].is_empty() {
            queues.retain(|queue| !queue.is_empty());
            continue;
        }
        events.push(choices(&[queues[from].remove(0)]));
    }
    events.push(event(&json!({"choices": [], "usage": {"completion_tokens": 3}})));
    events.push("data: [DONE]\n\n".to_owned());
    let all = samples.iter().enumerate();
    let all = all.map(|(index, sample)| choice(index, sample, 0..sample.response_ids.len(), generate));
    let whole = json!({"choices": all.collect::<Vec<_>>()}).to_string();
    Scenario { samples, whole, events }
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    any::<bool>().prop_flat_map(|generate| {
        let parts = (
            prop::collection::vec(any_sample(generate), 1..4),
            prop::collection::vec(1_usize..9, 1..6),
            prop::collection::vec(0_usize..4, 1..9),
        );
        parts.prop_map(move |(samples, cuts, mut turns)| {
            turns.extend(0..4);
            scenario(samples, generate, &cuts, &turns)
        })
    })
}

fn is_prefix(part: &PartialOutput, sample: &SampleOutput) -> bool {
    part.response_ids.len() == part.logprobs.len()
        && sample.response_ids.starts_with(&part.response_ids)
        && sample.logprobs.starts_with(&part.logprobs)
}

proptest! {
    #[test]
    fn a_stream_is_the_answer_in_one_piece_however_it_is_split(
        scenario in any_scenario(), piece_bytes in 1_usize..200,
    ) {
        let (found, progress) = read(&scenario.bytes(), &scenario.expected(), piece_bytes);
        let mut reader = AnswerReader::new(scenario.expected());
        reader.feed(scenario.whole.as_bytes()).unwrap();
        prop_assert_eq!(&found, &reader.finish());
        prop_assert_eq!(found, Ok(CheckedAnswer::Samples(scenario.samples)));
        prop_assert!(progress.take().is_empty());
    }

    #[test]
    fn a_stream_cut_anywhere_leaves_what_its_whole_events_hold(
        scenario in any_scenario(), share in 0.0..1.0_f64, piece_bytes in 1_usize..99,
    ) {
        let bytes = scenario.bytes();
        let cut = (bytes.len() as f64 * share) as usize;
        let (found, progress) = read(&bytes[..cut], &scenario.expected(), piece_bytes);
        let text = std::str::from_utf8(&bytes[..cut]).unwrap();
        let whole_events = text.rfind("\n\n").map_or(0, |end| end + 2);
        if let Ok(CheckedAnswer::Samples(samples)) = found {
            // Only the bytes after the end of the last sample are missing.
            prop_assert_eq!(samples, scenario.samples);
        } else {
            prop_assert!(matches!(found, Err(AnswerError::Cut { .. })), "{:?}", found);
            let (_, of_whole_events) = read(&bytes[..whole_events], &scenario.expected(), usize::MAX);
            let parts = progress.take();
            prop_assert_eq!(&parts, &of_whole_events.take());
            prop_assert_eq!(parts.len(), scenario.samples.len());
            for (part, sample) in parts.iter().zip(&scenario.samples) {
                prop_assert!(is_prefix(part, sample));
                let has_ended = part.response_ids.len() == sample.response_ids.len();
                prop_assert_eq!(part.finish_reason, has_ended.then_some(sample.finish_reason));
            }
        }
    }

    #[test]
    fn a_changed_byte_never_panics_and_never_leaves_a_hole(
        scenario in any_scenario(), position: prop::sample::Index, byte: u8,
    ) {
        let mut bytes = scenario.bytes();
        let at = position.index(bytes.len());
        bytes[at] = byte;
        let (found, progress) = read(&bytes, &scenario.expected(), 64);
        if let Ok(CheckedAnswer::Samples(samples)) = found {
            for sample in samples {
                prop_assert_eq!(sample.response_ids.len(), sample.logprobs.len());
                prop_assert!(spans_cover(&sample.version_spans, sample.response_ids.len()));
            }
        }
        for part in progress.take() {
            prop_assert_eq!(part.response_ids.len(), part.logprobs.len());
        }
    }
}

fn sample(tokens: u32) -> SampleOutput {
    SampleOutput {
        response_ids: (0..tokens).collect(),
        logprobs: (0..tokens).map(|token| -(token as f32)).collect(),
        finish_reason: FinishReason::Length,
        version_spans: vec![],
    }
}

#[test]
fn what_is_no_stream_of_the_protocol_is_named() {
    let two = sample(2);
    let first = choices(&[choice(0, &two, 0..1, false)]);
    let last = choices(&[choice(0, &two, 1..2, false)]);
    let mut poisoned = choice(0, &two, 1..2, false);
    poisoned["logprobs"]["token_logprobs"] = json!([-9999.0]);
    let mut short = choice(0, &two, 1..2, false);
    short["logprobs"] = json!(null);
    let mut elsewhere = choice(0, &two, 1..2, false);
    elsewhere["index"] = json!(1);
    let mut other_prompt = choice(0, &two, 0..1, false);
    other_prompt["prompt_token_ids"] = json!([5, 7]);
    let mut misnamed = choice(0, &two, 1..2, true);
    misnamed["logprobs"]["content"][0]["token_id"] = json!(7);
    // The log-probabilities come first.
    let reversed = misnamed.as_object().unwrap().clone().into_iter().rev().collect();
    let mut spans = choice(0, &two, 1..2, false);
    spans["weight_versions"] = json!([{"version": "a", "start": 0, "end": 1}]);
    let error =
        event(&json!({"error": {"message": "out of luck", "type": "InternalServerError", "code": 500}}));
    let cases = [
        (format!("{first}{}", choices(&[poisoned])), "poisoned"),
        (format!("{first}{}", choices(&[short])), "logprobs=0 for tokens=1"),
        (format!("{first}{}", choices(&[elsewhere])), "expected choices=1"),
        (format!("{first}{}", choices(&[misnamed])), "logprob at token=0 is that of id=7, expected id=1"),
        (format!("{first}{}", choices(&[Value::Object(reversed)])), "logprob at token=0 is that of id=7"),
        (choices(&[other_prompt]), "echoed prompt differs"),
        (format!("{first}{}", choices(&[spans])), "weight versions"),
        (format!("{first}{last}{last}"), "finish_reason=\"more than one\""),
        (format!("{first}{first}{first}"), "max_tokens=2"),
        (format!("{first}data: [DONE]\n\n"), "ended before choice=0"),
        (String::new(), "ended before choice=0"),
        (
            event(&json!({"choices": [{"index": 0, "token_ids": [], "finish_reason": "stop"}]})),
            "no token ids",
        ),
        (format!("{first}{error}"), "the engine failed: out of luck"),
        (event(&json!({"error": "words"})), "the engine failed: words"),
        (event(&json!({"error": {}})), "the engine failed: no error message"),
        (format!("{first}{last}data: [DONE]\n\n{last}"), "nothing after its end"),
        (format!("{first}{last}data: [DONE\n\n"), "an object"),
        ("data: [1]\n\n".to_owned(), "an object"),
        ("data: {\n\n".to_owned(), "truncated json"),
        // The server does not stream.
        (choices(&[choice(0, &two, 0..2, false)]).replace("data: ", ""), "ended before choice=0"),
    ];
    for (text, words) in cases {
        let (found, _) = read(text.as_bytes(), &expected(1, 2), usize::MAX);
        let found = found.unwrap_err().to_string();
        assert!(found.contains(words), "{text}: {found}");
    }
}

#[test]
fn an_abort_hands_over_what_there_is_with_its_spans() {
    let (one, two) = (sample(3), sample(2));
    let mut aborted = choice(0, &one, 2..3, true);
    aborted["finish_reason"] = json!("abort");
    aborted["weight_versions"] = json!([{"version": "v", "start": 0, "end": 3}]);
    let text = [
        choices(&[choice(0, &one, 0..2, true), choice(1, &two, 0..2, true)]),
        choices(&[aborted]),
        "data: [DONE]\n\n".to_owned(),
    ];
    let (found, _) = read(text.concat().as_bytes(), &expected(2, 9), 7);
    let Ok(CheckedAnswer::Aborted { tokens: 5, parts }) = found else { panic!("{found:?}") };
    assert_eq!(parts[0].response_ids, [0, 1, 2]);
    assert_eq!(parts[0].version_spans, [VersionSpan { version: "v".into(), start: 0, end: 3 }]);
    assert_eq!(parts[0].finish_reason, None);
    // The other sample had ended by itself.
    assert_eq!((parts[1].response_ids.len(), parts[1].finish_reason), (2, Some(FinishReason::Length)));
}

#[test]
fn tokens_that_were_taken_early_are_not_missing_from_an_answer() {
    let two = sample(2);
    let progress = Progress::new();
    let mut reader = StreamReader::new(expected(1, 2), progress.clone());
    reader.feed(choices(&[choice(0, &two, 0..1, false)]).as_bytes()).unwrap();
    assert_eq!(progress.tokens(), 1);
    assert_eq!(progress.take()[0].response_ids, [0]);
    let fed = reader.feed(choices(&[choice(0, &two, 1..2, false)]).as_bytes());
    assert_eq!(fed, Err(AnswerError::Taken));

    let mut ended = StreamReader::new(expected(1, 2), progress.clone());
    ended.feed(choices(&[choice(0, &two, 0..2, false)]).as_bytes()).unwrap();
    assert_eq!(progress.take()[0].finish_reason, Some(FinishReason::Length));
    assert_eq!(ended.finish(), Err(AnswerError::Taken));
}

/// An event of the completions endpoint with one token, whose text begins at `offset`.
fn at_offset(index: usize, token: usize, offset: &Value) -> String {
    let three = sample(3);
    let mut part = choice(index, &three, token..token + 1, false);
    part["logprobs"]["text_offset"] = offset.clone();
    choices(&[part])
}

#[test]
fn events_whose_texts_begin_in_the_opposite_order_were_swapped() {
    let of = |offsets: [Value; 3]| {
        let [first, second, third] = offsets;
        let events = [
            at_offset(0, 0, &first),
            // The texts of other samples have their own offsets.
            at_offset(1, 0, &json!([0])),
            at_offset(0, 1, &second),
            at_offset(1, 1, &json!([90, 91])),
            at_offset(0, 2, &third),
            at_offset(1, 2, &json!([90])),
        ];
        read(events.concat().as_bytes(), &expected(2, 3), 7).0
    };
    let found = of([json!([0]), json!([7]), json!([4])]);
    assert_eq!(found, Err(AnswerError::Order { index: 0, before: 7, found: 4 }));
    let found = of([json!([3]), json!([0]), json!([9])]);
    assert_eq!(found, Err(AnswerError::Order { index: 0, before: 3, found: 0 }));
    for sound in [
        [json!([0]), json!([4]), json!([7])],
        // A token that is a part of a character has no text.
        [json!([0, 1]), json!([0]), json!([0])],
        // Not all servers know the offsets.
        [json!([-1]), json!([-1]), json!([-1])],
        [json!([5]), json!(null), json!([])],
        [json!([null]), json!([null]), json!([null])],
    ] {
        assert!(matches!(of(sound.clone()), Ok(CheckedAnswer::Samples(_))), "{sound:?}");
    }
}

#[test]
fn swapped_events_of_a_recorded_stream_are_refused() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vllm/captures");
    let Ok(text) = std::fs::read_to_string(folder.join("completions_stream.json")) else {
        eprintln!("skipped: no recorded traffic at {}", folder.display());
        return;
    };
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let body = recorded["response"]["body_text"].as_str().unwrap();
    let prompt_ids = recorded["request"]["body"]["prompt"].as_array().unwrap();
    let prompt_ids = prompt_ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let expected = Expected { prompt_ids, ..expected(2, 4) };
    let mut events: Vec<&str> = body.split_inclusive("\n\n").collect();
    // These are the second and the third token of the first sample.
    events.swap(1, 3);
    let (found, _) = read(events.concat().as_bytes(), &expected, usize::MAX);
    assert_eq!(found, Err(AnswerError::Order { index: 0, before: 12, found: 11 }));
}

/// Recorded streams give the same result as a reader that builds a JSON tree of each event.
#[test]
fn recorded_streams_are_read_as_a_tree_reads_them() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vllm/captures");
    for (name, n, max_tokens) in [("generate_stream.json", 1, 3), ("completions_stream.json", 2, 4)] {
        let Ok(text) = std::fs::read_to_string(folder.join(name)) else {
            eprintln!("skipped: no recorded traffic at {}", folder.display());
            return;
        };
        let recorded: Value = serde_json::from_str(&text).unwrap();
        let body = recorded["response"]["body_text"].as_str().unwrap();
        let asked = &recorded["request"]["body"];
        let prompt = asked.get("token_ids").or(asked.get("prompt")).unwrap();
        let prompt_ids = prompt.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let mut token_ids = vec![Vec::new(); n as usize];
        for line in body.lines().filter_map(|line| line.strip_prefix("data: {")) {
            let event: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
            for choice in event["choices"].as_array().unwrap() {
                let ids = choice["token_ids"].as_array().unwrap();
                let index = choice["index"].as_u64().unwrap() as usize;
                token_ids[index].extend(ids.iter().map(|id| id.as_u64().unwrap() as u32));
            }
        }
        let expected = Expected { prompt_ids, ..expected(n, max_tokens) };
        for piece_bytes in [1, 5, 256, usize::MAX] {
            let (found, _) = read(body.as_bytes(), &expected, piece_bytes);
            let Ok(CheckedAnswer::Samples(samples)) = found else { panic!("{name}: {found:?}") };
            let found: Vec<_> = samples.iter().map(|sample| sample.response_ids.clone()).collect();
            assert_eq!(found, token_ids, "{name}");
            assert!(samples.iter().all(|sample| sample.finish_reason == FinishReason::Length));
            let spans: usize = samples.iter().map(|sample| sample.version_spans.len()).sum();
            assert_eq!(spans, usize::from(name.starts_with("generate")));
        }
    }
}
