//! Options whose value is one of a few words. Another crate defines an option's type and parses its words;
//! this module has the help text of each word.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::value::{Error as WordError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

/// A word and its help text.
pub(super) type Word = (&'static str, &'static str);

/// `--policy`: [`rolldock_loadbalancer::Policy`].
pub(super) const POLICIES: &[Word] = &[
    ("least_load", "The server with the smallest share of its permits out"),
    ("power_of_two", "The less loaded of two servers at random"),
    ("least_work", "The server with the fewest expected tokens outstanding"),
    ("group_affinity", "The server that the group's previous sample went to, else least load"),
    ("weighted", "The server on which a further sample is decoded fastest"),
    ("round_robin", "All servers in turn"),
    ("random", "Any server"),
];

/// `--probe`: [`rolldock_loadbalancer::Probe`].
pub(super) const PROBES: &[Word] = &[
    ("health", "It answers its health endpoint"),
    ("generate", "A server that has nothing to do, or was dead, also generates a token"),
];

/// `--durability`: [`rolldock_queue::Durability`].
pub(super) const DURABILITIES: &[Word] =
    &[("none", "Nothing"), ("os", "The death of the process"), ("fsync", "The death of the machine")];

/// Reads one of `words` as a `T`.
pub(super) fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [Word],
) -> impl TypedValueParser<Value = T> {
    let values = words.iter().map(|(word, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values).try_map(|word| {
        let reader: StrDeserializer<'_, WordError> = word.as_str().into_deserializer();
        T::deserialize(reader)
    })
}
