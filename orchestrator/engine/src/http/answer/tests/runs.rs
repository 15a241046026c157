//! Bodies in the compact form of engines, whose long arrays are read in runs. A reader that is fed byte by
//! byte never reads runs, so such a reader is the reference.

use super::*;

/// A token of a body, with its alternatives.
#[derive(Debug, Clone)]
pub(super) struct Token {
    id: u32,
    /// The id that the log-probability names.
    named: u32,
    logprob: String,
    rank: String,
    text: String,
    /// `repeats`: whether the alternatives repeat the token. `before` and `after`: the numbers of other
    /// alternatives before and after that repetition.
    before: usize,
    repeats: bool,
    after: usize,
}

/// Generates values of `usual`, and now and then a value from `or`.
fn rarely(
    usual: impl Strategy<Value = String> + 'static,
    or: &'static [&'static str],
) -> BoxedStrategy<String> {
    prop_oneof![60 => usual, 1 => prop::sample::select(or).prop_map(str::to_owned)].boxed()
}

fn any_logprob() -> impl Strategy<Value = String> {
    let usual = prop_oneof![
        (-20.0_f32..0.0).prop_map(|value| format!("{:?}", f64::from(value))),
        (-1e-3_f32..0.0).prop_map(|value| format!("{:e}", f64::from(value)).replace("e-", "e-0")),
        Just("0.0".to_owned()),
        Just("-1.1920928955078125e-07".to_owned()),
    ];
    rarely(usual, &["null", "-9999.0", "-1e300", "01", "-", "-1e5", "-0.5 ", "\"-0.5\"", "-1E-2", "-1e2"])
}

fn any_vocab_size() -> impl Strategy<Value = u32> {
    prop_oneof![1_u32..300_000, Just(VOCAB_SIZE_UNKNOWN)]
}

fn any_token() -> impl Strategy<Value = Token> {
    let id = prop_oneof![0_u32..200, 0_u32..152_000, any::<u32>()];
    let rank = rarely((1_u32..100).prop_map(|rank| rank.to_string()), &["null", "1.5", "-1", "[]"]);
    let names_another = prop_oneof![60 => Just(false), 1 => Just(true)];
    let alternatives = (0_usize..3, any::<bool>(), 0_usize..2);
    (id, names_another, any_logprob(), rank, "(\\PC|[\"\\\\\n\t]){0,9}", alternatives).prop_map(
        |(id, names_another, logprob, rank, text, (before, repeats, after))| Token {
            id,
            named: id ^ u32::from(names_another),
            logprob,
            rank,
            text,
            before,
            repeats,
            after,
        },
    )
}

fn list(elements: impl Iterator<Item = String>) -> String {
    format!("[{}]", elements.collect::<Vec<_>>().join(","))
}

fn ids(tokens: &[Token]) -> String {
    list(tokens.iter().map(|token| token.id.to_string()))
}

/// A body of the generate endpoint.
pub(super) fn generate(tokens: &[Token]) -> String {
    let content = list(tokens.iter().map(|token| {
        let Token { named, logprob, rank, .. } = token;
        let members = format!("\"token_id\":{named},\"logprob\":{logprob},\"rank\":{rank}");
        let other = |place: usize| format!("{{\"token_id\":{place},\"logprob\":-0.25,\"rank\":null}}");
        let alternatives = (0..token.before).map(other);
        let alternatives = alternatives.chain(token.repeats.then(|| format!("{{{members}}}")));
        let alternatives = list(alternatives.chain((0..token.after).map(other)));
        format!("{{{members},\"top_logprobs\":{alternatives}}}")
    }));
    let end = tokens.len();
    format!(
        "{{\"prompt_token_ids\":[5,66,151643],\"choices\":[{{\"index\":0,\"finish_reason\":\"stop\",\
         \"token_ids\":{},\"weight_versions\":[{{\"version\":\"default\",\"start\":0,\"end\":{end}}}],\
         \"logprobs\":{{\"content\":{content}}}}}]}}",
        ids(tokens)
    )
}

/// A body of the completions endpoint.
fn completions(tokens: &[Token]) -> String {
    let logprobs = list(tokens.iter().map(|token| token.logprob.clone()));
    let texts = list(tokens.iter().map(|token| json!(token.text).to_string()));
    let offsets = list((0..tokens.len()).map(|place| (place * 3).to_string()));
    let alternatives =
        list(tokens.iter().map(|token| format!("{{{}:{}}}", json!(token.text), token.logprob)));
    let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
    format!(
        "{{\"choices\":[{{\"index\":0,\"text\":{},\"logprobs\":{{\"text_offset\":{offsets},\
         \"token_logprobs\":{logprobs},\"tokens\":{texts},\"top_logprobs\":{alternatives}}},\
         \"finish_reason\":\"length\",\"token_ids\":{},\"prompt_token_ids\":[5,66,151643]}}]}}",
        json!(text),
        ids(tokens)
    )
}

proptest! {
    #[test]
    fn runs_give_what_single_bytes_give(
        tokens in prop::collection::vec(any_token(), 0..50),
        is_generate: bool,
        max_tokens in 20_u32..60,
        vocab_size in any_vocab_size(),
        chunk_bytes in prop_oneof![20_usize..2_000, Just(usize::MAX)],
    ) {
        let body = if is_generate { generate(&tokens) } else { completions(&tokens) };
        let expected = Expected { vocab_size, ..super::tokens(&[5, 66, 151_643], 1, max_tokens) };
        let by_bytes = read_in_chunks(body.as_bytes(), &expected, 1);
        prop_assert_eq!(read_in_chunks(body.as_bytes(), &expected, chunk_bytes), by_bytes, "{}", body);
    }

    #[test]
    fn runs_give_what_single_bytes_give_if_a_byte_is_changed(
        tokens in prop::collection::vec(any_token(), 1..12),
        is_generate: bool,
        position: prop::sample::Index,
        byte in prop_oneof![any::<u8>(), prop::sample::select(br#"{}[]",:\-1.e0 "#.to_vec())],
        vocab_size in any_vocab_size(),
        chunk_bytes in prop_oneof![20_usize..500, Just(usize::MAX)],
    ) {
        let mut body = if is_generate { generate(&tokens) } else { completions(&tokens) }.into_bytes();
        let at = position.index(body.len());
        body[at] = byte;
        let expected = Expected { vocab_size, ..super::tokens(&[5, 66, 151_643], 1, 40) };
        let by_bytes = read_in_chunks(&body, &expected, 1);
        prop_assert_eq!(read_in_chunks(&body, &expected, chunk_bytes), by_bytes);
    }
}

/// A token whose log-probability names `named`.
pub(super) fn named(id: u32, named: u32) -> Token {
    Token {
        id,
        named,
        logprob: "-0.5".to_owned(),
        rank: "1".to_owned(),
        text: "a".to_owned(),
        before: 0,
        repeats: true,
        after: 0,
    }
}

#[test]
fn recorded_answers_are_read_in_runs_as_byte_by_byte() {
    for name in ["completions_tokens_n4.json", "generate_noheader.json", "aborted_unknown_id.json"] {
        let Some(recorded) = capture(name) else { return };
        let body = recorded.pointer("/response/body").unwrap_or(&recorded);
        let n = body["choices"].as_array().unwrap().len() as u32;
        let expected = super::tokens(&prompt_of(&recorded, body), n, 8192);
        let text = body.to_string();
        let by_bytes = read_in_chunks(text.as_bytes(), &expected, 1).unwrap();
        assert!(read_in_chunks(text.as_bytes(), &expected, usize::MAX).unwrap() == by_bytes, "{name}");
    }
}

#[test]
fn an_id_outside_the_vocabulary_is_refused_in_both_dialects_however_it_arrives() {
    let vocab_size = 151_936;
    // The ids of a run have up to seven digits. Longer ids are read by the general scanner.
    for (id, fits) in
        [(151_935, true), (151_936, false), (9_999_999, false), (1 << 31, false), (u32::MAX, false)]
    {
        for (place, tokens_after) in [(0, 40), (20, 20), (39, 0)] {
            let token = |id| named(id, id);
            let mut tokens = vec![token(7); place];
            tokens.push(token(id));
            tokens.resize(place + 1 + tokens_after, token(8));
            let expected = Expected { vocab_size, ..super::tokens(&[5, 66, 151_643], 1, 60) };
            for body in [generate(&tokens), completions(&tokens)] {
                for chunk_bytes in [1, 97, usize::MAX] {
                    let found = read_in_chunks(body.as_bytes(), &expected, chunk_bytes);
                    let refused = Err(AnswerError::Vocabulary { token: place, id, vocab_size });
                    assert!(
                        if fits { found.is_ok() } else { found == refused },
                        "{id} at {place}: {found:?}"
                    );
                }
            }
        }
    }
}
