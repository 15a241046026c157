//! The parameters of requests. Unknown keys are ignored, as in vLLM.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Face;
use super::reply::Refusal;
use crate::request::{SimChunk, SimRequest, StopScan};

/// Maximum number of stop strings (vLLM's `VLLM_MAX_STOP_STRINGS`).
const STOP_STRINGS_MAX: usize = 4;

/// Maximum number of alternatives per token (vLLM's `--max-logprobs`).
const LOGPROBS_MAX: i64 = 20;

/// One string or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The sampling parameters that all dialects share.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Sampling {
    pub(crate) n: Option<u32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    temperature: Option<f64>,
    /// A signed 64-bit integer, as in vLLM.
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    include_stop_str_in_output: Option<bool>,
}

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage_stats: bool,
}

impl Sampling {
    pub(crate) fn samples(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// Checks the parameters that the engine's own rules do not check: the temperature and the number of stop
    /// strings.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if let Some(temperature) = self.temperature
            && temperature < 0.0
        {
            let message = format!(
                "temperature must be non-negative, got {temperature:?}. (parameter=temperature, \
                 value={temperature:?})"
            );
            return Err(Refusal::bad_request(Some("temperature"), message));
        }
        if self.temperature == Some(0.0) && self.samples() > 1 {
            let message = format!("n must be 1 when using greedy sampling, got {}.", self.samples());
            return Err(Refusal::bad_request(None, message));
        }
        if self.stops().len() > STOP_STRINGS_MAX {
            let message = format!("stop must have at most {STOP_STRINGS_MAX} strings.");
            return Err(Refusal::bad_request(Some("stop"), message));
        }
        Ok(())
    }

    pub(crate) fn stops(&self) -> &[String] {
        match &self.stop {
            None => &[],
            Some(OneOrMany::One(stop)) => std::slice::from_ref(stop),
            Some(OneOrMany::Many(stops)) => stops,
        }
    }

    /// Cuts the text of a response before its first stop string, or after this string if the request wants to
    /// keep it. Returns the text and the stop string.
    pub(crate) fn cut<'a>(&'a self, mut text: String) -> (String, Option<&'a str>) {
        let first = |stop: &'a String| text.find(stop.as_str()).map(|place| (place, stop.as_str()));
        let Some((place, stop)) = self.stops().iter().filter_map(first).min() else { return (text, None) };
        let is_kept = self.include_stop_str_in_output.unwrap_or(false);
        text.truncate(if is_kept { place + stop.len() } else { place });
        (text, Some(stop))
    }

    /// The engine's request for one prompt.
    pub(crate) fn request(
        &self,
        face: &Face,
        request_id: Arc<str>,
        prompt_ids: Arc<[u32]>,
        stream: Option<tokio::sync::mpsc::Sender<SimChunk>>,
    ) -> SimRequest {
        SimRequest {
            request_id,
            prompt_ids,
            n: self.samples(),
            max_tokens: self.max_tokens.or(self.max_completion_tokens),
            min_tokens: self.min_tokens.unwrap_or(0),
            // A negative seed becomes the unsigned number with the same bits.
            seed: self.seed.map(i64::cast_unsigned),
            stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
            stop_scan: self.stop_scan(face),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            resumed: None,
            recognise_resumed: true,
            stream,
            generated: None,
        }
    }

    fn stop_scan(&self, face: &Face) -> Option<StopScan> {
        let stops: Vec<String> = self.stops().iter().filter(|stop| !stop.is_empty()).cloned().collect();
        if stops.is_empty() {
            return None;
        }
        let codec = Arc::clone(&face.codec);
        Some(StopScan::new(move |tokens: &[u32]| {
            let has_stop = |length: usize| {
                let text = codec.decode(&tokens[..length]);
                stops.iter().any(|stop| text.contains(stop.as_str()))
            };
            if !has_stop(tokens.len()) {
                return None;
            }
            // If a text contains a stop string, every longer text contains it too. The smallest number of
            // tokens with a stop string is therefore found by bisection.
            let (mut without, mut with) = (0, tokens.len());
            while with - without > 1 {
                let middle = without + (with - without) / 2;
                if has_stop(middle) { with = middle } else { without = middle }
            }
            u32::try_from(with).ok()
        }))
    }
}

/// Reads a part of a request from its JSON. Errors have vLLM's messages.
pub(crate) fn parse_value<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<T, Refusal> {
    T::deserialize(value).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    let message = format!("1 validation error:\n  {{'type': 'value_error', 'msg': '{error}'}}");
    Refusal::unreadable(None, message)
}

/// Reads a JSON body. Errors have vLLM's messages.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        use serde_json::error::Category;
        if error.classify() == Category::Data {
            return unreadable(&error);
        }
        let place = body.len();
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{place}', 'msg': 'JSON decode \
             error', 'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
        );
        Refusal::unreadable(Some(&format!("body.{place}")), message)
    })
}

/// Checks the number of alternatives per token that a request asks for.
pub(crate) fn check_logprobs(face: &Face, logprobs: Option<i64>) -> Result<(), Refusal> {
    let Some(asked) = logprobs else { return Ok(()) };
    // -1 asks for the whole vocabulary.
    let wanted = if asked < 0 { i64::from(face.server.workload().config().vocab_size) } else { asked };
    if wanted <= LOGPROBS_MAX {
        return Ok(());
    }
    let message = format!(
        "Requested sample logprobs of {wanted}, which is greater than max allowed: {LOGPROBS_MAX} \
         (parameter=logprobs, value={wanted})"
    );
    Err(Refusal::bad_request(Some("logprobs"), message))
}

/// Checks that a request that names a model names the served model.
pub(crate) fn check_model(face: &Face, model: Option<&str>) -> Result<(), Refusal> {
    let served = &face.server.config().model;
    match model {
        Some(asked) if asked != served => Err(Refusal::new(
            hyper::StatusCode::NOT_FOUND,
            "NotFoundError",
            Some("model"),
            format!("The model `{asked}` does not exist. Valid aliases: {served}."),
        )),
        _ => Ok(()),
    }
}
