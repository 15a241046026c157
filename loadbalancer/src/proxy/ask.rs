//! Reads the facts that routing needs from a request: its samples, its tokens and its group.

use std::fmt;

use hyper::http::request::Parts;
use memchr::memmem;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use xxhash_rust::xxh3::xxh3_64;

/// Requests with the same value of this header belong to one group, for
/// [`Policy::GroupAffinity`](crate::Policy::GroupAffinity).
pub(super) const GROUP_HEADER: &str = "x-rolldock-group";

/// The demand of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Number of samples.
    pub(super) samples: u32,
    /// Maximum number of tokens of each sample; 0 if the request sets no limit.
    pub(super) expected_tokens: u32,
    pub(super) group: Option<u64>,
}

/// Maximum number of samples that an engine takes in one request (vLLM: `VLLM_MAX_N_SEQUENCES`).
pub(super) const SAMPLES_MAX: u32 = 16_384;

impl Demand {
    /// Reads the demand of a request. A body that cannot be read counts as one sample, since the engine will
    /// refuse it.
    pub(super) fn of(head: &Parts, body: &[u8], counts_tokens: bool) -> Self {
        let group = head.headers.get(GROUP_HEADER).map(|group| xxh3_64(group.as_bytes()));
        // Nearly every request omits `n` and therefore asks for one sample. Its body is not parsed.
        if !counts_tokens && memmem::find(body, b"\"n\"").is_none() && !may_have_prompts(body) {
            return Self { samples: 1, expected_tokens: 0, group };
        }
        let read: Params = serde_json::from_slice(body).unwrap_or_default();
        let (prompts, params) = match head.uri.path() {
            "/inference/v1/generate" => (1, read.sampling.map_or_else(Params::default, |params| *params)),
            "/v1/completions" => (read.prompts.max(1), read),
            _ => (1, read),
        };
        Self {
            samples: params.n.unwrap_or(1).max(1).saturating_mul(prompts),
            expected_tokens: params.max_tokens.or(params.max_completion_tokens).unwrap_or(0),
            group,
        }
    }
}

/// Whether the prompt may be a list of prompts: a key `prompt` is followed by a list whose first element is a
/// string or a list. Most prompts are a text or a list of tokens. Their requests are not parsed.
fn may_have_prompts(body: &[u8]) -> bool {
    const KEY: &[u8] = b"\"prompt\"";
    memmem::find_iter(body, KEY).any(|at| {
        let mut rest = body[at + KEY.len()..].iter().filter(|byte| !byte.is_ascii_whitespace());
        rest.next() == Some(&b':') && rest.next() == Some(&b'[') && matches!(rest.next(), Some(b'"' | b'['))
    })
}

/// The fields that are read from a body. If a key occurs several times, the last value counts, as in the
/// engine.
#[derive(Default)]
struct Params {
    n: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    prompts: u32,
    sampling: Option<Box<Params>>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    N,
    MaxTokens,
    MaxCompletionTokens,
    Prompt,
    SamplingParams,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Params {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Params;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Params, M::Error> {
                let mut params = Params::default();
                while let Some(key) = map.next_key()? {
                    match key {
                        Key::N => params.n = map.next_value::<Count>()?.0,
                        Key::MaxTokens => params.max_tokens = map.next_value::<Count>()?.0,
                        Key::MaxCompletionTokens => {
                            params.max_completion_tokens = map.next_value::<Count>()?.0;
                        }
                        Key::Prompt => params.prompts = map.next_value::<Prompts>()?.0,
                        Key::SamplingParams => params.sampling = map.next_value()?,
                        Key::Other => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(params)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// A number in one of the forms that engines accept: it may be in a string, or have a fraction of zero
/// (`3.0`).
struct Count(Option<u32>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = Option<u64>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number")
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Some(number))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(None)
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Some(number as u64))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(text.trim().parse().ok())
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(None)
            }
        }

        let number = deserializer.deserialize_any(Counting)?;
        Ok(Self(number.map(|number| u32::try_from(number).unwrap_or(u32::MAX))))
    }
}

/// The number of prompts. A text or a list of tokens is one prompt. A list of texts or of token lists has one
/// prompt for each element.
struct Prompts(u32);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = u32;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a prompt")
            }

            fn visit_str<E>(self, _: &str) -> Result<u32, E> {
                Ok(1)
            }

            fn visit_unit<E>(self) -> Result<u32, E> {
                Ok(1)
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<u32, S::Error> {
                let mut prompts = 0;
                while let Some(Element { is_prompt }) = elements.next_element()? {
                    prompts += u32::from(is_prompt);
                }
                Ok(prompts.max(1))
            }
        }

        deserializer.deserialize_any(Counting).map(Self)
    }
}

/// An element of a list of prompts, or a token of a prompt.
struct Element {
    is_prompt: bool,
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;

        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = bool;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a prompt or a token")
            }

            fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
                Ok(false)
            }

            fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
                Ok(false)
            }

            fn visit_str<E>(self, _: &str) -> Result<bool, E> {
                Ok(true)
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut tokens: S) -> Result<bool, S::Error> {
                while tokens.next_element::<IgnoredAny>()?.is_some() {}
                Ok(true)
            }
        }

        deserializer.deserialize_any(ElementVisitor).map(|is_prompt| Self { is_prompt })
    }
}

#[derive(Deserialize)]
struct AbortBody {
    request_ids: Vec<String>,
}

/// The ids of the requests to abort; `None` if the body names no requests. An engine would abort all its
/// requests in that case.
pub(super) fn request_ids(body: &[u8]) -> Option<Vec<String>> {
    let AbortBody { request_ids } = serde_json::from_slice(body).ok()?;
    (!request_ids.is_empty()).then_some(request_ids)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn demand(path: &str, body: &str) -> Demand {
        let (head, ()) = Request::post(path).body(()).unwrap().into_parts();
        Demand::of(&head, body.as_bytes(), true)
    }

    #[test]
    fn samples_and_tokens_are_read_at_the_keys_of_each_endpoint() {
        let one = Demand { samples: 1, expected_tokens: 0, group: None };
        assert_eq!(demand("/v1/completions", r#"{"prompt":"hello"}"#), one);
        assert_eq!(demand("/v1/completions", "no JSON \"n\""), one);
        let four = Demand { samples: 4, expected_tokens: 9, group: None };
        let prompt = r#"{"prompt":[1,2],"n":4,"max_tokens":9,"logprobs":0}"#;
        assert_eq!(demand("/v1/completions", prompt), four);
        assert_eq!(demand("/v1/chat/completions", r#"{"n":4,"max_completion_tokens":9}"#), four);
        let generate = r#"{"token_ids":[1],"n":7,"sampling_params":{"n":4,"max_tokens":9}}"#;
        assert_eq!(demand("/inference/v1/generate", generate), four);
        assert_eq!(demand("/v1/completions", r#"{"n":null,"prompt":"\"n\""}"#), one);
    }

    #[test]
    fn each_prompt_of_a_list_counts_and_a_list_of_tokens_is_one_prompt() {
        let samples = |body: &str| {
            let (head, ()) = Request::post("/v1/completions").body(()).unwrap().into_parts();
            let quick = Demand::of(&head, body.as_bytes(), false).samples;
            assert_eq!(quick, demand("/v1/completions", body).samples, "{body}");
            quick
        };
        assert_eq!(samples(r#"{"prompt":[1,2,3,4]}"#), 1);
        assert_eq!(samples(r#"{"prompt" : [ "a", "b", "c" ]}"#), 3);
        assert_eq!(samples(r#"{"prompt":[[1,2],[3]],"n":4}"#), 8);
        assert_eq!(samples(r#"{"prompt":"[\"a\",\"b\"]"}"#), 1);
        assert_eq!(samples(r#"{"prompt":[]}"#), 1);
        assert_eq!(samples(r#"{"prompt":null}"#), 1);
        assert_eq!(samples(r#"{"prompt":["\"prompt\":[[", "b"]}"#), 2);
        assert_eq!(samples(r#"{"n":1,"prompt":"x","n":7}"#), 7, "the last one counts");
        assert_eq!(samples(r#"{"n":"5"}"#), 5);
        assert_eq!(samples(r#"{"n":3.0}"#), 3);
        assert_eq!(samples(r#"{"n":-3}"#), 1);
        assert_eq!(samples(r#"{"n":1e300,"prompt":["a","b"]}"#), u32::MAX);
        assert_eq!(demand("/v1/chat/completions", r#"{"prompt":["a","b"]}"#).samples, 1);
        assert_eq!(demand("/inference/v1/generate", r#"{"sampling_params":null}"#).samples, 1);
    }

    #[test]
    fn an_abort_without_ids_is_noticed() {
        assert_eq!(request_ids(br#"{"request_ids":["a","b"]}"#), Some(vec!["a".to_owned(), "b".to_owned()]));
        for body in ["", "{}", r#"{"request_ids":[]}"#, r#"{"request_ids":"a"}"#, r#"{"request_ids":[1]}"#] {
            assert_eq!(request_ids(body.as_bytes()), None, "{body}");
        }
    }
}
