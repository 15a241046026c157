//! Reads merged values for serde, and says which words a key can have if its value is something else.
//!
//! The deserializer of [`Value`] describes a number in place of a word in its own terms, and accepts a table whose only
//! key is the word, whatever the table has as the word's options. Here such a value is a mistake, whose message lists
//! the words. All other values are read by [`Value`] itself.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer};
use serde::de::{Unexpected, VariantAccess, Visitor};
use toml::Value;
use toml::de::Error;

/// A value of the recipe, and all values within it.
pub(super) struct Given(pub(super) Value);

impl<'de> IntoDeserializer<'de, Error> for Given {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Given {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => {
                let mut values = SeqDeserializer::new(list.into_iter().map(Given));
                let read = visitor.visit_seq(&mut values)?;
                values.end().map(|()| read)
            }
            Value::Table(table) => {
                let mut values =
                    MapDeserializer::new(table.into_iter().map(|(key, value)| (key, Given(value))));
                let read = visitor.visit_map(&mut values)?;
                values.end().map(|()| read)
            }
            single => single.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        // TOML has no empty value.
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(word) => visitor.visit_enum(Word { word, options: None, words }),
            Value::Table(table) if table.len() == 1 => match table.into_iter().next() {
                Some((word, options)) => visitor.visit_enum(Word { word, options: Some(options), words }),
                None => Err(neither(Unexpected::Map, words)),
            },
            other => Err(neither(unexpected(&other), words)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A word of those that a key can have.
struct Word {
    word: String,
    /// The word's options, if the value is a table whose only key is the word.
    options: Option<Value>,
    words: &'static [&'static str],
}

impl Word {
    /// The options of a word that has some.
    fn required(self) -> Result<Given, Error> {
        let Self { word, options, .. } = self;
        options.map(Given).ok_or_else(|| {
            let expected = format!("a table, {{ {word} = ... }}");
            Error::invalid_type(Unexpected::Str(&word), &expected.as_str())
        })
    }
}

impl<'de> EnumAccess<'de> for Word {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let word = IntoDeserializer::<Error>::into_deserializer(self.word.as_str());
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.options {
            None => Ok(()),
            Some(_) => Err(neither(Unexpected::Map, self.words)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.required()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        self.required()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.required()?.deserialize_any(visitor)
    }
}

/// The error of a value that is none of the words.
fn neither(found: Unexpected<'_>, words: &[&str]) -> Error {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    let expected = match quoted.as_slice() {
        [only] => only.clone(),
        [one, other] => format!("{one} or {other}"),
        several => format!("one of {}", several.join(", ")),
    };
    Error::invalid_type(found, &expected.as_str())
}

/// The value in serde's terms.
fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::String(text) => Unexpected::Str(text),
        Value::Integer(number) => Unexpected::Signed(*number),
        Value::Float(number) => Unexpected::Float(*number),
        Value::Boolean(is_set) => Unexpected::Bool(*is_set),
        Value::Datetime(_) => Unexpected::Other("date"),
        Value::Array(_) => Unexpected::Seq,
        Value::Table(_) => Unexpected::Map,
    }
}
