//! Tables of a recipe that can also be written as the value of their main key: `python = "module:function"`
//! is `python = { function = "module:function" }`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A table that a recipe may write as the value of its main key alone.
pub trait ShortForm: DeserializeOwned {
    /// The values that a recipe may write at the key of the table. Error messages quote this text.
    const EXPECTED: &'static str;

    /// The table for a string; `None` if a string is not a short form.
    fn of_text(_text: &str) -> Option<Self> {
        None
    }

    /// The table for a list of strings; `None` if a list is not a short form.
    fn of_list(_words: Vec<String>) -> Option<Self> {
        None
    }
}

/// Deserialises the short form or the table. The error of an untagged serde enum would not name the wrong key
/// of the table.
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
