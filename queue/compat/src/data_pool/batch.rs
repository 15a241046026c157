//! Fetched steps, in order, with the columns that a fetch adds.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::take::{take, take_record_batch};

use super::IMPORTANCE_WEIGHT;
use rolldock_queue::{INCOMPLETE, Lease, QueueError, RowHandle, joined};

/// Whole prompt groups that a task holds under a lease. They are consumed by [`consume`](Self::consume), or
/// delivered again when this value is dropped.
///
/// The groups are in order, oldest first. The trajectories of a group are in the order of their first steps,
/// and the steps of a trajectory are ordered by index.
#[derive(Debug)]
#[must_use = "dropping it gives its steps back"]
pub struct PoolBatch {
    lease: Lease,
    batch: RecordBatch,
    rows: Vec<RowHandle>,
}

fn damaged(what: &str) -> QueueError {
    QueueError::Arrow { reason: format!("a row of the pool without {what}") }
}

/// The indices of the rows, in the order of the fetched batch.
fn order(lease: &Lease, batch: &RecordBatch) -> Result<UInt32Array, QueueError> {
    let trajectories =
        batch.column_by_name("trajectory_uid").and_then(|column| column.as_string_opt::<i32>());
    let trajectories = trajectories.ok_or_else(|| damaged("trajectory_uid"))?;
    let steps = batch.column_by_name("step_index").and_then(|column| column.as_primitive_opt::<UInt32Type>());
    let steps = steps.ok_or_else(|| damaged("step_index"))?;
    let mut firsts: HashMap<(&str, &str), usize> = HashMap::new();
    let mut groups: HashMap<&str, usize> = HashMap::new();
    let mut order: Vec<(usize, usize, u32, u32)> = Vec::with_capacity(batch.num_rows());
    for (place, group) in lease.groups().iter().enumerate() {
        let first_of_group = *groups.entry(group).or_insert(place);
        let first = *firsts.entry((group, trajectories.value(place))).or_insert(place);
        order.push((first_of_group, first, steps.value(place), place as u32));
    }
    order.sort_unstable();
    Ok(order.into_iter().map(|(.., place)| place).collect())
}

impl PoolBatch {
    pub(super) fn new(lease: Lease) -> Result<Self, QueueError> {
        let batch = joined(lease.batches())?;
        let versions =
            batch.column_by_name("policy_version").and_then(|column| column.as_primitive_opt::<UInt64Type>());
        let versions = versions.ok_or_else(|| damaged("policy_version"))?;
        let off_policy: BooleanArray =
            versions.values().iter().map(|version| Some(*version < lease.fresh_from())).collect();
        let is_tagged = |row: usize| lease.tags().get(row).is_some_and(|tags| tags[INCOMPLETE] == true);
        let incomplete: BooleanArray = (0..batch.num_rows()).map(|row| Some(is_tagged(row))).collect();
        let order = order(&lease, &batch)?;
        let mut fields: Vec<Arc<Field>> = batch.schema_ref().fields().to_vec();
        let sorted = take_record_batch(&batch, &order)?;
        let mut columns: Vec<ArrayRef> = sorted.columns().to_vec();
        for (name, flags) in [("off_policy", off_policy), (INCOMPLETE, incomplete)] {
            fields.push(Arc::new(Field::new(name, DataType::Boolean, false)));
            columns.push(take(&flags, &order, None)?);
        }
        if batch.column_by_name(IMPORTANCE_WEIGHT).is_none() {
            fields.push(Arc::new(Field::new(IMPORTANCE_WEIGHT, DataType::Float32, true)));
            columns.push(new_null_array(&DataType::Float32, sorted.num_rows()));
        }
        let rows = order.values().iter().filter_map(|place| lease.rows().get(*place as usize)).copied();
        let rows = rows.collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
        Ok(Self { lease, batch, rows })
    }

    /// The columns of the steps, and three more:
    /// - `off_policy`: whether the step is off-policy.
    /// - `incomplete`: whether the group was given up before it was complete.
    /// - `importance_weight`: null if it was not written. Readers treat null as 1.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The handles, in the order of the batch's rows.
    pub fn rows(&self) -> &[RowHandle] {
        &self.rows
    }

    /// The prompts without repetition, in the order of the batch's rows.
    pub fn prompt_uids(&self) -> Vec<&str> {
        let mut prompts: Vec<&str> = self.lease.groups().iter().map(String::as_str).collect();
        prompts.dedup();
        prompts
    }

    fn flags(&self, name: &str) -> impl Iterator<Item = bool> {
        let column = self.batch.column_by_name(name).and_then(|column| column.as_boolean_opt());
        column.into_iter().flatten().map(|flag| flag == Some(true))
    }

    /// The number of steps whose policy version was too old when they were fetched: the lag behind the newest
    /// version exceeded the pool's threshold.
    pub fn off_policy_count(&self) -> usize {
        self.flags("off_policy").filter(|flag| *flag).count()
    }

    /// Whether any group was given up before it was complete.
    pub fn is_incomplete(&self) -> bool {
        self.flags(INCOMPLETE).any(|flag| flag)
    }

    /// Consumes the steps for the task, like [`Lease::ack`]. Cancel-safe: a dropped call takes effect
    /// completely or not at all.
    pub async fn consume(self) -> Result<(), QueueError> {
        self.lease.ack().await
    }

    /// Extends the lease by a full term. Cancel-safe.
    pub async fn renew(&self) -> Result<(), QueueError> {
        self.lease.renew().await
    }
}
