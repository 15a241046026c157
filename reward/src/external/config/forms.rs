//! Short forms, defaults, and the checks that several keys share.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{CommandConfig, HttpConfig, PythonConfig};
use crate::RewardError;

/// A week: no limit of a job or a start is longer.
const SECONDS_MAX: f64 = 604_800.0;

/// A table that can be written as its main key alone.
pub trait ShortForm: DeserializeOwned {
    /// What may stand there, for an error.
    const EXPECTED: &'static str;

    /// The table of a text.
    fn of_text(_text: &str) -> Option<Self> {
        None
    }

    /// The table of a list.
    fn of_list(_words: Vec<String>) -> Option<Self> {
        None
    }
}

impl ShortForm for PythonConfig {
    const EXPECTED: &'static str = "\"module:function\" or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self {
            function: text.to_owned(),
            interpreter: interpreter(),
            directory: None,
            path: Vec::new(),
            env: Default::default(),
            workers: workers(),
            jobs_per_worker: None,
            memory_mb: None,
            start_s: start_s(),
        })
    }
}

impl ShortForm for CommandConfig {
    const EXPECTED: &'static str = "a list of words or a table";

    fn of_list(words: Vec<String>) -> Option<Self> {
        Some(Self {
            words,
            directory: None,
            env: Default::default(),
            workers: workers(),
            jobs_per_worker: None,
            memory_mb: None,
            handshake: false,
            start_s: start_s(),
        })
    }
}

impl ShortForm for HttpConfig {
    const EXPECTED: &'static str = "\"http://..\" or a table";

    fn of_text(text: &str) -> Option<Self> {
        Some(Self {
            url: text.to_owned(),
            api_key_env: None,
            batch_max: None,
            batch_wait_ms: batch_wait_ms(),
        })
    }
}

/// Reads either form; serde's own choice between forms would not say which key of a table is wrong.
pub fn short_or_table<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: ShortForm,
{
    deserializer.deserialize_any(Either(PhantomData))
}

struct Either<T>(PhantomData<T>);

impl<'de, T: ShortForm> Visitor<'de> for Either<T> {
    type Value = Option<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::EXPECTED)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let wrong = || E::invalid_type(serde::de::Unexpected::Str(text), &T::EXPECTED);
        T::of_text(text).map(Some).ok_or_else(wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut words = Vec::new();
        while let Some(word) = list.next_element()? {
            words.push(word);
        }
        let wrong = || A::Error::invalid_type(serde::de::Unexpected::Seq, &T::EXPECTED);
        T::of_list(words).map(Some).ok_or_else(wrong)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

pub(super) fn interpreter() -> String {
    "python3".to_owned()
}

pub(super) fn workers() -> usize {
    4
}

pub(super) fn start_s() -> f64 {
    120.0
}

pub(super) fn batch_wait_ms() -> u64 {
    20
}

/// A duration that is a limit.
pub(super) fn seconds(key: &'static str, value: f64) -> Result<Duration, RewardError> {
    let wrong = || RewardError::Misconfigured {
        key,
        expected: "seconds above 0, a week at most",
        found: value.to_string(),
    };
    match value > 0.0 && value <= SECONDS_MAX {
        true => Duration::try_from_secs_f64(value).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

/// A number of things from 1 to `most`.
pub(super) fn count(key: &'static str, value: usize, most: usize) -> Result<usize, RewardError> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    let found = format!("{value} (the most is {most})");
    Err(RewardError::Misconfigured { key, expected: "a number of at least 1", found })
}

/// What the variable `name` holds, if one is named.
pub(super) fn api_key(key: &'static str, name: Option<&str>) -> Result<Option<String>, RewardError> {
    let Some(name) = name else { return Ok(None) };
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(Some(value)),
        _ => Err(RewardError::Misconfigured {
            key,
            expected: "the name of an environment variable that is set",
            found: format!("{name:?}"),
        }),
    }
}
