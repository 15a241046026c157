//! Options whose value is one of a few words. Another crate defines an option's type and parses its words;
//! this module has the help text of each word.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::value::{Error as WordError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

/// A word and its help text.
pub(super) type Word = (&'static str, &'static str);

/// `--policy`: [`rolldock_loadbalancer::Policy`].
pub(super) const POLICIES: &[Word] = &[
    ("least_load", "The server with the smallest share of its permits in use"),
    ("power_of_two", "The less loaded of two random servers"),
    ("least_work", "The server with the fewest expected tokens outstanding"),
    ("group_affinity", "The server of the group's previous sample, else least load"),
    ("weighted", "The server on which a further sample is decoded fastest"),
    ("round_robin", "All servers in turn"),
    ("random", "Any server"),
];

/// `--probe`: [`rolldock_loadbalancer::Probe`].
pub(super) const PROBES: &[Word] = &[
    ("health", "Every server has to answer at its health endpoint"),
    ("generate", "A server that is idle or was dead also has to generate a token"),
];

/// `--durability`: [`rolldock_queue::Durability`].
pub(super) const DURABILITIES: &[Word] =
    &[("none", "Nothing"), ("os", "A crash of the process"), ("fsync", "A crash of the machine")];

/// `--unrewarded`: [`rolldock_gateway::Unrewarded`].
pub(super) const UNREWARDED: &[Word] = &[
    ("drop", "It is left out; the group is put with the others"),
    ("zero", "Its reward is 0"),
    ("drop_group", "The whole group is left out"),
];

/// `rolldock gateway --advantage`: the [`rolldock_recipe::AdvantageEstimator`]s that need only a group.
pub(super) const ADVANTAGES: &[Word] = &[
    ("grpo", "Relative to the group's mean, in units of its standard deviation"),
    ("grpo_no_std", "Relative to the group's mean"),
    ("dr_grpo", "As grpo_no_std, for a loss that does not divide by lengths"),
    ("rloo", "Relative to the mean of the group's other trajectories"),
    ("grpo_process", "For each turn, from turn_rewards, in the column token_advantages"),
];

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
