//! Checks of `[report]`.

use super::Checks;
use crate::Recipe;

pub(super) fn check(recipe: &Recipe, checks: &mut Checks<'_>) {
    let report = &recipe.report;
    checks.require(report.is_sound(), "report.listen", || {
        format!(
            "expected an address and a port, for example \"127.0.0.1:9400\", or \"off\", found {:?}",
            report.listen
        )
    });
}
