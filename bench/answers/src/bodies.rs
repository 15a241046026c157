//! Answers of a vLLM server with thousands of tokens, in both dialects.
//!
//! If the folder of recorded exchanges is beside the checkout, the frame of an answer comes from a recorded
//! exchange of a real server. Otherwise it is a built-in frame with the same members. The columns of a long
//! response replace the recorded columns. Their values are drawn from a seed and formatted as the server
//! formats them.

use std::fmt::Write;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::typed::Columns;

const SEED: u64 = 42;
const PROMPT_TOKENS: u32 = 256;

/// Texts of tokens, as they occur in a solution of a mathematical problem. The last ones need escapes, or
/// have a character of several bytes.
const PIECES: [&str; 32] = [
    " the",
    " of",
    " is",
    " =",
    " we",
    ",",
    ".",
    " 1",
    "2",
    "0",
    " x",
    " +",
    " -",
    "(",
    ")",
    " therefore",
    " integer",
    " \\(",
    "\\)",
    "frac",
    "{",
    "}",
    " number",
    " Let",
    "^",
    " so",
    "ing",
    " solution",
    "\n",
    ".\n\n",
    "\"",
    " é",
];

/// The two endpoints of vLLM that return token ids with log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Face {
    /// `/inference/v1/generate`.
    Generate,
    /// `/v1/completions`.
    Completions,
}

impl Face {
    /// Both endpoints.
    pub const ALL: [Self; 2] = [Self::Generate, Self::Completions];

    /// The path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Self::Generate => "/inference/v1/generate",
            Self::Completions => "/v1/completions",
        }
    }

    fn recorded(self) -> &'static str {
        match self {
            Self::Generate => "generate_basic.json",
            Self::Completions => "completions_stop_token_id.json",
        }
    }

    /// The members of an answer, in the order in which vLLM 0.32 writes them. Some have no value.
    fn frame(self) -> &'static str {
        match self {
            Self::Generate => {
                r#"{"request_id":"generate-tokens-bench-0","model":"bench","created":1795233534,"usage":{"prompt_tokens":7,
                "total_tokens":13,"completion_tokens":6,"prompt_tokens_details":null,"completion_tokens_details":null},
                "prompt_logprobs":null,"prompt_token_ids":[],"kv_transfer_params":null,"output_mode":"tokens",
                "choices":[{"index":0,"finish_reason":"length","stop_reason":null,"token_ids":[],"routed_experts":null,
                "sampling_mask":null,"weight_versions":[{"version":"default","start":0,"end":6}],
                "logprobs":{"content":[]}}]}"#
            }
            Self::Completions => {
                r#"{"id":"cmpl-bench-0","object":"text_completion","created":1795233489,"model":"bench",
                "choices":[{"index":0,"text":"","logprobs":{"text_offset":[],"token_logprobs":[],"tokens":[],
                "top_logprobs":[]},"finish_reason":"stop","stop_reason":null,"token_ids":[],"prompt_logprobs":null,
                "prompt_token_ids":[],"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm",
                "usage":{"prompt_tokens":7,"total_tokens":15,"completion_tokens":8},"kv_transfer_params":null}"#
            }
        }
    }
}

/// An answer, with the values that a reader has to find in it.
pub struct Body {
    /// The endpoint that gives this answer.
    pub face: Face,
    /// The token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The JSON text of the answer.
    pub text: Vec<u8>,
    /// The columns that a reader must find in the text.
    pub columns: Columns,
}

impl Body {
    /// An answer with one sample of `tokens` tokens. Equal arguments give equal bytes on one machine.
    pub fn new(face: Face, tokens: usize) -> anyhow::Result<Self> {
        let mut frame = frame(face)?;
        let draws = draw(tokens);
        let prompt_ids: Vec<u32> = (0..PROMPT_TOKENS).map(|place| place * 577 % 151_643).collect();
        let mut values = vec![("token_ids", list(draws.iter().map(|draw| draw.id.to_string())))];
        let prompt = list(prompt_ids.iter().map(u32::to_string));
        match face {
            Face::Generate => {
                put(&mut frame, "/prompt_token_ids", "prompt_token_ids")?;
                put(&mut frame, "/choices/0/logprobs/content", "content")?;
                frame["choices"][0]["weight_versions"][0]["end"] = tokens.into();
                values.push(("content", list(draws.iter().map(Draw::content))));
            }
            Face::Completions => {
                put(&mut frame, "/choices/0/prompt_token_ids", "prompt_token_ids")?;
                for member in ["text_offset", "token_logprobs", "tokens", "top_logprobs"] {
                    put(&mut frame, &format!("/choices/0/logprobs/{member}"), member)?;
                }
                let text: String = draws.iter().map(|draw| draw.piece).collect();
                frame["choices"][0]["text"] = text.into();
                values.push(("text_offset", list(offsets(&draws).map(|offset| offset.to_string()))));
                values.push(("token_logprobs", list(draws.iter().map(Draw::number))));
                values.push(("tokens", list(draws.iter().map(Draw::quoted))));
                let alternative = |draw: &Draw| format!("{{{}:{}}}", draw.quoted(), draw.number());
                values.push(("top_logprobs", list(draws.iter().map(alternative))));
            }
        }
        put(&mut frame, "/choices/0/token_ids", "token_ids")?;
        values.push(("prompt_token_ids", prompt));
        let mut text = frame.to_string();
        for (member, value) in values {
            text = text.replace(&format!("\"{}\"", marker(member)), &value);
        }
        let columns = Columns {
            ids: draws.iter().map(|draw| draw.id).collect(),
            logprobs: draws.iter().map(|draw| draw.logprob).collect(),
        };
        Ok(Self { face, prompt_ids, text: text.into_bytes(), columns })
    }
}

/// The frame of a recorded answer, or the built-in frame with the same members.
fn frame(face: Face) -> anyhow::Result<Value> {
    let folder = rolldock_bench_figures::shared("vllm/captures");
    let Ok(recorded) = std::fs::read_to_string(folder.join(face.recorded())) else {
        return Ok(serde_json::from_str(face.frame())?);
    };
    let mut exchange: Value = serde_json::from_str(&recorded)?;
    let body = exchange.pointer_mut("/response/body").map(Value::take);
    body.ok_or_else(|| anyhow::anyhow!("{} has no body of a response", face.recorded()))
}

fn marker(member: &str) -> String {
    format!("@{member}@")
}

/// Replaces a recorded column by its marker.
fn put(frame: &mut Value, pointer: &str, member: &str) -> anyhow::Result<()> {
    let place = frame.pointer_mut(pointer);
    *place.ok_or_else(|| anyhow::anyhow!("the answer has no {pointer}"))? = marker(member).into();
    Ok(())
}

fn list(elements: impl Iterator<Item = String>) -> String {
    format!("[{}]", elements.collect::<Vec<_>>().join(","))
}

/// A drawn token.
struct Draw {
    id: u32,
    logprob: f32,
    rank: u32,
    piece: &'static str,
}

impl Draw {
    fn number(&self) -> String {
        python(f64::from(self.logprob))
    }

    fn quoted(&self) -> String {
        Value::from(self.piece).to_string()
    }

    /// The server repeats the sampled token among the alternatives.
    fn content(&self) -> String {
        let Self { id, rank, .. } = self;
        let members = format!("\"token_id\":{id},\"logprob\":{},\"rank\":{rank}", self.number());
        format!("{{{members},\"top_logprobs\":[{{{members}}}]}}")
    }
}

/// Draws tokens as a trained policy does. The policy is nearly certain of 30 % of its tokens, so their
/// log-probabilities are zero, or below zero by less than 64 times `f32::EPSILON`. Small ids are more
/// frequent than large ones.
fn draw(tokens: usize) -> Vec<Draw> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut each = || {
        let logprob = match rng.random_range(0..10) {
            0 => 0.0,
            1..3 => -(rng.random_range(1..64) as f32) * f32::EPSILON,
            3..7 => -(10.0_f32.powf(rng.random_range(-4.0..-1.0))),
            _ => -rng.random_range(0.1_f32..8.0),
        };
        Draw {
            id: 151_643.0_f64.powf(rng.random_range(0.2..1.0)) as u32,
            logprob,
            rank: if logprob > -0.7 { 1 } else { rng.random_range(2..400) },
            piece: PIECES[rng.random_range(0..PIECES.len())],
        }
    };
    (0..tokens).map(|_| each()).collect()
}

/// The offset of each token in the text, in characters.
fn offsets(draws: &[Draw]) -> impl Iterator<Item = usize> {
    draws.iter().scan(0, |offset, draw| {
        let start = *offset;
        *offset += draw.piece.chars().count();
        Some(start)
    })
}

/// Formats a number as Python does: with the shortest digits, and with an exponent if the magnitude is below
/// 1e-4 or at least 1e16.
fn python(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let mut text = digits.to_owned();
    // Writing to a string does not fail.
    let _ = write!(text, "e{sign}{:02}", exponent.abs());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-1.0, "-1.0"),
            (-0.0001, "-0.0001"),
            (-0.00001, "-1e-05"),
            (-1.1920928955078125e-7, "-1.1920928955078125e-07"),
            (-10.00468635559082, "-10.00468635559082"),
        ];
        for (value, text) in cases {
            assert_eq!(python(value), text);
        }
    }

    #[test]
    fn a_body_is_json_with_the_drawn_columns() {
        for face in Face::ALL {
            let body = Body::new(face, 100).unwrap();
            let tree: Value = serde_json::from_slice(&body.text).unwrap();
            let ids = tree.pointer("/choices/0/token_ids").unwrap().as_array().unwrap();
            let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(ids, body.columns.ids);
            assert!(!String::from_utf8(body.text).unwrap().contains('@'), "a marker is left");
        }
    }

    #[test]
    fn the_own_frames_have_the_members_of_recorded_answers() {
        for face in Face::ALL {
            let (own, used): (Value, Value) =
                (serde_json::from_str(face.frame()).unwrap(), frame(face).unwrap());
            let names =
                |value: &Value| value["choices"][0].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&own), names(&used), "{face:?}");
        }
    }
}
