//! Reads an answer with the JSON libraries of Rust, each in its fastest way. The types have only the members
//! that are kept, and their strings borrow from the body.

use std::borrow::Cow;

use serde::Deserialize;

/// The columns of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// Token ids of the response.
    pub ids: Vec<u32>,
    /// Log-probabilities of these tokens.
    pub logprobs: Vec<f32>,
}

impl Columns {
    /// Whether all values are equal, bit for bit.
    pub fn is_same(&self, other: &Self) -> bool {
        let bits = |columns: &Self| columns.logprobs.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        self.ids == other.ids && bits(self) == bits(other)
    }
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    index: u32,
    #[serde(borrow)]
    finish_reason: Cow<'a, str>,
    token_ids: Vec<u32>,
    prompt_token_ids: Option<Vec<u32>>,
    logprobs: Logprobs,
    #[serde(borrow)]
    weight_versions: Option<Vec<Span<'a>>>,
}

#[derive(Deserialize)]
struct Logprobs {
    token_logprobs: Option<Vec<f32>>,
    content: Option<Vec<Token>>,
}

#[derive(Deserialize)]
struct Token {
    logprob: f32,
}

#[derive(Deserialize)]
struct Span<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    start: u32,
    end: u32,
}

impl Answer<'_> {
    /// The columns of the only sample, after the checks that our reader makes.
    fn into_columns(self, prompt_ids: &[u32]) -> anyhow::Result<Columns> {
        let [choice] = <[Choice<'_>; 1]>::try_from(self.choices)
            .map_err(|choices| anyhow::anyhow!("{} samples", choices.len()))?;
        let echo = self.prompt_token_ids.or(choice.prompt_token_ids);
        anyhow::ensure!(echo.is_none_or(|ids| ids == prompt_ids), "the echoed prompt differs");
        anyhow::ensure!(choice.index == 0 && !choice.finish_reason.is_empty(), "the sample has no end");
        let spans = choice.weight_versions.unwrap_or_default();
        let covered = spans.iter().map(|span| span.end - span.start).sum::<u32>() as usize;
        let named = spans.iter().all(|span| !span.version.is_empty());
        anyhow::ensure!(
            spans.is_empty() || named && covered == choice.token_ids.len(),
            "versions do not cover"
        );
        let content = choice.logprobs.content.unwrap_or_default();
        let logprobs = choice.logprobs.token_logprobs;
        let logprobs = logprobs.unwrap_or_else(|| content.into_iter().map(|token| token.logprob).collect());
        anyhow::ensure!(logprobs.len() == choice.token_ids.len(), "a token has no log-probability");
        anyhow::ensure!(logprobs.iter().all(|logprob| *logprob > -9999.0), "a poisoned log-probability");
        Ok(Columns { ids: choice.token_ids, logprobs })
    }
}

/// Reads an answer with serde_json.
///
/// # Errors
/// The text is not an answer, or its prompt ids are not `prompt_ids`.
pub fn by_serde_json(body: &[u8], prompt_ids: &[u32]) -> anyhow::Result<Columns> {
    serde_json::from_slice::<Answer<'_>>(body)?.into_columns(prompt_ids)
}

/// simd-json decodes strings in place, so it needs a body that it may change.
pub fn by_simd_json(body: &mut [u8], prompt_ids: &[u32]) -> anyhow::Result<Columns> {
    simd_json::from_slice::<Answer<'_>>(body)?.into_columns(prompt_ids)
}

/// Reads an answer with sonic-rs. Errors are those of [`by_serde_json`].
pub fn by_sonic_rs(body: &[u8], prompt_ids: &[u32]) -> anyhow::Result<Columns> {
    sonic_rs::from_slice::<Answer<'_>>(body)?.into_columns(prompt_ids)
}
