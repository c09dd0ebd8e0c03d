//! Whose rows a query may touch: those of one user, and for a credential that is bound to a Site or
//! a BatchJob those of that alone. All others look like rows that do not exist.

use copal_schemas::{BatchJobId, SiteId, UserId};
use sqlx::{Postgres, QueryBuilder};

use crate::extract::CurrentUser;

/// Whose rows a query may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The user.
    pub owner: UserId,
    /// The only Site, where the credential is bound to one.
    pub site: Option<SiteId>,
    /// The only BatchJob whose Sessions it may have, where it is bound to one.
    pub batch_job: Option<BatchJobId>,
}

impl From<&CurrentUser> for Scope {
    fn from(user: &CurrentUser) -> Self {
        Self { owner: user.id, site: user.site(), batch_job: user.batch_job() }
    }
}

impl Scope {
    /// The conditions on a table or alias that has `owner_id` and `site_id`, without a word before.
    pub fn push(self, sql: &mut QueryBuilder<Postgres>, table: &str) {
        sql.push(table).push(".owner_id = ").push_bind(self.owner);
        if let Some(site) = self.site {
            sql.push(" and ").push(table).push(".site_id = ").push_bind(site);
        }
    }

    /// A condition that leaves out the Jobs of deleted Apps, which are being removed behind.
    ///
    /// Written so that the planner takes it for a condition that most rows meet; from `<> all` it
    /// concludes that hardly any does, and plans for that.
    pub fn push_visible(self, sql: &mut QueryBuilder<Postgres>, table: &str) {
        sql.push(" and (array_position(array(select app_id from deleted_apps where owner_id = ").push_bind(self.owner);
        sql.push("), ").push(table).push(".app_id) > 0) is not true");
    }
}
