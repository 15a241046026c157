//! Takes. A take leases ready rows, or waits for them.

use tokio::time::Instant;

use super::waiting::{Need, Waiter};
use super::{Chosen, Partition, Table};
use crate::error::QueueError;
use crate::lease::Lease;
use crate::record::Freed;
use crate::row::RowHandle;
use crate::take::{Amount, GroupSampler, Sampler, Stale, Take};

/// The result of one attempt to take.
enum Attempt<'a> {
    Leased {
        lease: u64,
        rows: Vec<RowHandle>,
        fresh_from: u64,
    },
    /// Too few rows are ready. The waiter is woken when another attempt may succeed.
    Waiting {
        waiter: Waiter<'a>,
        next_expiry: Instant,
    },
    Nothing,
}

impl Partition {
    /// Takes ready rows under a lease. Without a deadline, returns `None` if too few rows are ready now. After the
    /// end of puts, returns `None` if the take gets no row and no other row can become ready.
    ///
    /// Cancel-safe: rows that were leased for a dropped take are given back. A waiting take holds no lock and
    /// no rows.
    pub async fn take(&self, take: &Take) -> Result<Option<Lease>, QueueError> {
        self.serve(take, None, true).await
    }

    /// Takes rows without reading their payload: the lease has no batches. Cancel-safe, like
    /// [`take`](Self::take).
    pub(crate) async fn take_unread(&self, take: &Take) -> Result<Option<Lease>, QueueError> {
        self.serve(take, None, false).await
    }

    /// Takes the groups that `sampler` chooses among the ready groups. The sampler of `take` is ignored. If
    /// `take` names its rows, `sampler` is not called.
    ///
    /// Cancel-safe, like [`take`](Self::take).
    pub async fn take_by(
        &self,
        take: &Take,
        sampler: &dyn GroupSampler,
    ) -> Result<Option<Lease>, QueueError> {
        self.serve(take, Some(sampler), true).await
    }

    /// Refuses a number of tokens where the partition does not count them.
    fn check_amount(&self, take: &Take) -> Result<(), QueueError> {
        let is_counted = || !self.shared.table.lock().spec.length_columns.is_empty();
        if take.only.is_some() || !matches!(take.amount, Amount::Tokens(_)) || is_counted() {
            return Ok(());
        }
        let reason = format!(
            "partition={} counts no tokens: expected rows or groups, or a declaration with length_columns",
            self.shared.name
        );
        Err(QueueError::BadRequest { reason })
    }

    async fn serve(
        &self,
        take: &Take,
        sampler: Option<&dyn GroupSampler>,
        reads: bool,
    ) -> Result<Option<Lease>, QueueError> {
        take.check()?;
        self.check_amount(take)?;
        let member = take.share.map_or(0, |share| share.member);
        let mut woken: Option<Waiter<'_>> = None;
        loop {
            if take.stale == Stale::Drop {
                self.drop_stale(take).await?;
            }
            if let Some(rows) = &take.only {
                self.visible(rows).await;
            }
            let attempt = self.try_take(take, sampler);
            self.shared.record_ends();
            let attempt = attempt?;
            if let Some(waiter) = woken.take() {
                waiter.mark_looked();
            }
            let (waiter, next_expiry) = match attempt {
                Attempt::Leased { lease, rows, fresh_from } => {
                    let lease = self.lease_of(lease, member, rows);
                    let read =
                        if reads { self.read_lease(lease, take.columns.as_deref()).await } else { Ok(lease) };
                    let mut lease = match read {
                        // The storage unit of the rows has just failed to answer. Other rows may be ready.
                        Err(QueueError::UnitAway { .. }) => continue,
                        read => read?,
                    };
                    if lease.rows.is_empty() {
                        // All rows were cleared in the meantime.
                        continue;
                    }
                    lease.fresh_from = fresh_from;
                    return Ok(Some(lease));
                }
                Attempt::Nothing => return Ok(None),
                Attempt::Waiting { waiter, next_expiry } => (waiter, next_expiry),
            };
            let Some(deadline) = take.deadline else { return Ok(None) };
            if Instant::now() >= deadline {
                return Err(self.late("sufficient number of ready rows"));
            }
            // The take reads the table again, whether it was woken or the wait has timed out.
            let _ = tokio::time::timeout_at(next_expiry.min(deadline), waiter.woken()).await;
            woken = Some(waiter);
        }
    }

    /// Frees the groups that may be dropped and whose policy version is too old for the take.
    async fn drop_stale(&self, take: &Take) -> Result<(), QueueError> {
        let rows = {
            let mut table = self.shared.table.lock();
            table.task(&take.task)?;
            let fresh_from = take.fresh_from(table.policy_version);
            table.begin_drop_stale(fresh_from)
        };
        if rows.is_empty() {
            return Ok(());
        }
        tracing::debug!(partition = %self.shared.name, rows = rows.len(), "stale rows are dropped");
        self.free(rows, Freed::Stale).await
    }

    /// Leases ready rows, or adds the take to the waiting takes. If the take must not wait, returns
    /// `Attempt::Nothing`.
    fn try_take(&self, take: &Take, sampler: Option<&dyn GroupSampler>) -> Result<Attempt<'_>, QueueError> {
        self.shared.check_is_there()?;
        let mut table = self.shared.table.lock();
        #[cfg(test)]
        self.shared.looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let task = table.task(&take.task)?;
        self.check_columns_of(&table, take)?;
        let now = Instant::now();
        let ended = table.expire(now);
        let attempt = self.attempt(&mut table, task, take, sampler, now);
        // Expired leases may have made rows ready. Rows that this take did not lease may serve other takes.
        match ended {
            0 => table.wake(),
            _ => self.shared.tell(&mut table),
        }
        if let Some((lease, rows)) = attempt? {
            if let Some(holder) = &take.holder {
                table.name_holder(lease, holder);
            }
            let fresh_from = take.fresh_from(table.policy_version);
            return Ok(Attempt::Leased { lease, rows, fresh_from });
        }
        let over = table.closed && !table.may_become_ready(task);
        if over || take.deadline.is_none() {
            return Ok(Attempt::Nothing);
        }
        let next_expiry = table.next_expiry_from(now);
        let need = if sampler.is_some() && take.only.is_none() { Need::Look } else { Need::of(take) };
        let waiter = Waiter::new(&self.shared, table.waiters(task), task, need);
        Ok(Attempt::Waiting { waiter, next_expiry })
    }

    fn check_columns_of(&self, table: &Table, take: &Take) -> Result<(), QueueError> {
        let Some(columns) = &take.columns else { return Ok(()) };
        // The first put may have any columns in addition to the declared columns.
        if table.next_group() == 0 && table.columns().len() == table.spec.columns.len() {
            return Ok(());
        }
        // Tasks may wait for columns whose types are not known yet.
        let is_awaited = |name: &String| table.spec.tasks.iter().any(|task| task.columns.contains(name));
        let is_known = |name: &String| table.columns().contains_key(name) || is_awaited(name);
        match columns.iter().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(unknown) => Err(QueueError::UnknownColumn {
                partition: self.shared.name.clone(),
                column: unknown.clone(),
            }),
        }
    }

    fn attempt(
        &self,
        table: &mut Table,
        task: usize,
        take: &Take,
        sampler: Option<&dyn GroupSampler>,
        now: Instant,
    ) -> Result<Option<(u64, Vec<RowHandle>)>, QueueError> {
        let declared = take.sampler == Sampler::Declared && table.spec.order != Sampler::Declared;
        let ordered = declared.then(|| Take { sampler: table.spec.order, ..take.clone() });
        let take = ordered.as_ref().unwrap_or(take);
        let over = table.closed && !table.may_become_ready(task);
        let expires = now + table.spec.lease();
        loop {
            if let Some(share) = &take.share
                && let Some(ours) = table.next_share(task, share)
            {
                return Ok(Some(ours));
            }
            let chosen: Option<Chosen> = match (&take.only, sampler) {
                (Some(rows), _) => table.choose_only(task, rows)?,
                (None, Some(sampler)) => table.choose_by(task, take, sampler, over)?,
                (None, None) => table.choose(task, take, over),
            };
            let Some(chosen) = chosen else { return Ok(None) };
            let Some(share) = &take.share else {
                let rows = chosen.rows();
                let lease = table.lease(task, rows.clone(), expires);
                return Ok(Some((lease, rows)));
            };
            // If there are fewer groups than ranks, the new shares may all belong to other ranks. The loop
            // then tries again.
            if !table.split(task, chosen, share, expires) {
                return Ok(None);
            }
        }
    }
}
