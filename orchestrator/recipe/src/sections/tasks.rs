//! The tasks of the queue, the columns that each waits for, and the types of columns that other processes
//! add.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use rolldock_dispatch::rows::IMPORTANCE_WEIGHT;
use rolldock_queue::{SCALAR_TYPES, TaskSpec};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `queue.tasks`: a list of names, or a table of tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Tasks {
    /// Each task waits only for the columns of the rollout, which every row has from the start.
    Names(Vec<String>),
    /// Each task waits for its own columns.
    Table(BTreeMap<String, Task>),
}

/// `[queue.tasks.NAME]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Task {
    /// The columns without which the task does not get a row. Other processes add the columns that the
    /// rollout does not have.
    pub columns: Vec<String>,
}

impl Tasks {
    /// The tasks, in the order of the list, or of their names.
    pub fn specs(&self) -> Vec<TaskSpec> {
        match self {
            Self::Names(names) => {
                names.iter().map(|name| TaskSpec { name: name.clone(), columns: Vec::new() }).collect()
            }
            Self::Table(tasks) => {
                let spec = |(name, task): (&String, &Task)| TaskSpec {
                    name: name.clone(),
                    columns: task.columns.clone(),
                };
                tasks.iter().map(spec).collect()
            }
        }
    }

    /// The names of the tasks, in the order of [`specs`](Self::specs).
    pub fn names(&self) -> Vec<String> {
        self.specs().into_iter().map(|task| task.name).collect()
    }

    /// The task that waits for the most columns, or the first of several such tasks. It gets its rows last,
    /// so it is probably the trainer.
    pub fn last_in_line(&self) -> Option<String> {
        let specs = self.specs();
        let most = specs.iter().map(|task| task.columns.len()).max()?;
        specs.into_iter().find(|task| task.columns.len() == most).map(|task| task.name)
    }
}

impl<'de> Deserialize<'de> for Tasks {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Tasks;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of names, or a table of tasks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Tasks, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(names)).map(Tasks::Names)
            }

            fn visit_map<A: MapAccess<'de>>(self, tasks: A) -> Result<Tasks, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(tasks)).map(Tasks::Table)
            }
        }
        reader.deserialize_any(Either)
    }
}

/// The type of a column, as written in `queue.columns`: `float32`, or `list<float32>`.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnType {
    words: String,
    /// The Arrow type.
    pub dtype: DataType,
}

/// The maximum depth of nested lists.
const LISTS_MAX: usize = 8;

fn dtype_of(words: &str, lists: usize) -> Option<DataType> {
    let Some(item) = words.strip_prefix("list<").and_then(|rest| rest.strip_suffix('>')) else {
        return SCALAR_TYPES.iter().find(|(name, _)| *name == words).map(|(_, dtype)| dtype.clone());
    };
    let item = dtype_of(item.trim(), lists.checked_sub(1)?)?;
    // Arrow's libraries declare the items of a list with this name and nullability.
    Some(DataType::List(Arc::new(Field::new("item", item, true))))
}

impl<'de> Deserialize<'de> for ColumnType {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let words = String::deserialize(reader)?;
        match dtype_of(words.trim(), LISTS_MAX) {
            Some(dtype) => Ok(Self { words, dtype }),
            None => {
                let names: Vec<&str> = SCALAR_TYPES.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                Err(D::Error::custom(format!("expected a type ({names}), or list<TYPE>, found {words:?}")))
            }
        }
    }
}

impl Serialize for ColumnType {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        writer.serialize_str(&self.words)
    }
}

/// The columns for which tasks wait and that other processes add. The rollout's own columns are left out: the
/// columns of `schema`, the importance weight, and the columns of partial scores (`score_*`).
pub(crate) fn added_columns(tasks: &Tasks, schema: &Schema) -> BTreeSet<String> {
    let is_own = |name: &String| schema.column_with_name(name).is_some() || name == IMPORTANCE_WEIGHT;
    let is_added = |name: &String| !is_own(name) && !name.starts_with("score_");
    tasks.specs().into_iter().flat_map(|task| task.columns).filter(is_added).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use rolldock_dispatch::rows::{schema, trajectory_schema};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    struct Section {
        tasks: Tasks,
        #[serde(default)]
        columns: BTreeMap<String, ColumnType>,
    }

    fn section(text: &str) -> Section {
        let section: Section = toml::from_str(text).unwrap();
        assert_eq!(toml::from_str::<Section>(&toml::to_string(&section).unwrap()).unwrap(), section);
        section
    }

    fn refused(text: &str) -> String {
        toml::from_str::<Section>(text).unwrap_err().to_string()
    }

    #[test]
    fn tasks_are_a_list_of_names_or_a_table_with_their_columns() {
        let listed = section("tasks = ['b', 'a']").tasks;
        assert_eq!((listed.names(), listed.last_in_line()), (vec!["b".into(), "a".into()], Some("b".into())));
        assert!(added_columns(&listed, &schema()).is_empty());
        let text = "[tasks.ref]\n[tasks.train]\ncolumns = ['reward', 'score_x', 'ref_log_prob']\n";
        let table = section(text).tasks;
        assert_eq!(table.names(), ["ref", "train"]);
        assert_eq!(table.specs()[1].columns, ["reward", "score_x", "ref_log_prob"]);
        assert_eq!(table.last_in_line(), Some("train".to_owned()));
        assert_eq!(added_columns(&table, &schema()), BTreeSet::from(["ref_log_prob".to_owned()]));
        let of_turns = section("[tasks.train]\ncolumns = ['reward', 'turn_starts']").tasks;
        assert_eq!(added_columns(&of_turns, &schema()), BTreeSet::from(["turn_starts".to_owned()]));
        assert!(added_columns(&of_turns, &trajectory_schema()).is_empty());
        assert!(refused("tasks = 3").contains("expected a list of names, or a table of tasks"));
        assert!(
            refused("[tasks.ref]\ncolumn = ['a']").contains("unknown field `column`, expected `columns`")
        );
    }

    #[test]
    fn types_of_columns_are_named_as_in_arrow() {
        let text = "tasks = ['a']\n[columns]\nvalue = 'float32'\nvalues = 'list<float32>'\n\
                    ids = 'list<list<uint32>>'\n";
        let columns = section(text).columns;
        assert_eq!(columns["value"].dtype, DataType::Float32);
        let floats = DataType::List(Arc::new(Field::new("item", DataType::Float32, true)));
        assert_eq!(columns["values"].dtype, floats);
        assert!(matches!(&columns["ids"].dtype, DataType::List(item) if item.data_type().is_nested()));
        for wrong in
            ["float", "list<float32", "list<>", &format!("{}int8{}", "list<".repeat(9), ">".repeat(9))]
        {
            let error = refused(&format!("tasks = ['a']\n[columns]\nx = '{wrong}'\n"));
            assert!(error.contains("expected a type (bool, int8,"), "{wrong}: {error}");
        }
    }
}
