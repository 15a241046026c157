//! What a request wants, as far as routing has to know it.

use bytes::Bytes;
use hyper::http::request::Parts;
use memchr::memmem;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// Requests with the same value of this header are a group, for [`Policy::GroupAffinity`](crate::Policy::GroupAffinity).
pub(super) const GROUP_HEADER: &str = "x-rolldock-group";

/// See the fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Samples that it asks for.
    pub(super) samples: u32,
    /// Of each of them at most; 0 where it does not say.
    pub(super) expected_tokens: u32,
    pub(super) group: Option<u64>,
}

#[derive(Deserialize, Default)]
struct Params {
    n: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
}

#[derive(Deserialize, Default)]
struct GenerateBody {
    #[serde(default)]
    sampling_params: Params,
}

impl Wanted {
    /// What cannot be read is the engine's to complain of: it counts as one sample.
    pub(super) fn of(head: &Parts, body: &Bytes, counts_tokens: bool) -> Self {
        let group = head.headers.get(GROUP_HEADER).map(|group| xxh3_64(group.as_bytes()));
        // Nearly every request asks for one sample, and says so by saying nothing.
        if !counts_tokens && memmem::find(body, b"\"n\"").is_none() {
            return Self { samples: 1, expected_tokens: 0, group };
        }
        let params = if head.uri.path() == "/inference/v1/generate" {
            serde_json::from_slice::<GenerateBody>(body).unwrap_or_default().sampling_params
        } else {
            serde_json::from_slice::<Params>(body).unwrap_or_default()
        };
        let expected_tokens = params.max_tokens.or(params.max_completion_tokens).unwrap_or(0);
        Self { samples: params.n.unwrap_or(1).max(1), expected_tokens, group }
    }
}

#[derive(Deserialize, Default)]
struct AbortBody {
    #[serde(default)]
    request_ids: Vec<serde::de::IgnoredAny>,
}

/// How many requests are to be aborted.
pub(super) fn request_ids(body: &Bytes) -> usize {
    serde_json::from_slice::<AbortBody>(body).unwrap_or_default().request_ids.len()
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn wanted(path: &str, body: &str) -> Wanted {
        let (head, ()) = Request::post(path).body(()).unwrap().into_parts();
        Wanted::of(&head, &Bytes::copy_from_slice(body.as_bytes()), true)
    }

    #[test]
    fn samples_and_tokens_are_read_where_they_stand() {
        let one = Wanted { samples: 1, expected_tokens: 0, group: None };
        assert_eq!(wanted("/v1/completions", r#"{"prompt":"hello"}"#), one);
        assert_eq!(wanted("/v1/completions", "no JSON \"n\""), one);
        let four = Wanted { samples: 4, expected_tokens: 9, group: None };
        let prompt = r#"{"prompt":[1,2],"n":4,"max_tokens":9,"logprobs":0}"#;
        assert_eq!(wanted("/v1/completions", prompt), four);
        assert_eq!(wanted("/v1/chat/completions", r#"{"n":4,"max_completion_tokens":9}"#), four);
        let generate = r#"{"token_ids":[1],"n":7,"sampling_params":{"n":4,"max_tokens":9}}"#;
        assert_eq!(wanted("/inference/v1/generate", generate), four);
        assert_eq!(wanted("/v1/completions", r#"{"n":null,"prompt":"\"n\""}"#), one);
    }
}
