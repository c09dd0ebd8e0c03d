//! `copal job why`: what keeps a Job from running, what weighs most first.

use copal_schemas::{
    JobId,
    why::{Why, WhyCode},
};

use super::job_show::unknown_job;
use crate::{
    context::Context,
    failure::Result,
    table::{Table, cell, job_state},
};

pub(super) async fn why(context: Context, id: i64) -> Result<()> {
    let id = JobId(id);
    let why = context.client()?.why_job(id).await.map_err(|error| unknown_job(id, error))?;
    context.out.data(&why, "Nothing is known of it.", || table(&why))
}

fn table(why: &Why) -> Table {
    let mut table = Table::bare();
    table.field("Job", cell(why.job_id));
    table.field("State", job_state(why.state));
    for reason in &why.reasons {
        table.field(words(reason.code), cell(&reason.message));
    }
    table
}

fn words(code: WhyCode) -> &'static str {
    match code {
        WhyCode::Running => "Running",
        WhyCode::Ended => "Ended",
        WhyCode::Dependency => "Dependency",
        WhyCode::ArrayLimit => "Limit of its array",
        WhyCode::Staging => "Staging",
        WhyCode::Hook => "Hook",
        WhyCode::AgentSilent => "Agent is silent",
        WhyCode::RemoteApp => "App of the API",
        WhyCode::Shape => "Too large",
        WhyCode::NoAllocation => "No allocation",
        WhyCode::Queued => "Allocation waits",
        WhyCode::Tags => "Tags",
        WhyCode::Nodes => "Nodes",
        WhyCode::Walltime => "Time left",
        WhyCode::NoLauncher => "No launcher yet",
        WhyCode::Order => "Order",
        WhyCode::Unknown => "Why",
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{JobState, why::WhyReason};

    use super::*;
    use crate::table::at_both_widths;

    #[test]
    fn every_cause_has_its_words_and_its_remedy() {
        let reason = |code, message: &str| WhyReason { code, message: message.into() };
        let why = Why {
            job_id: JobId(7),
            state: JobState::Preprocessed,
            reasons: vec![
                reason(
                    WhyCode::AgentSilent,
                    "the agent of Site theta has said nothing for 25 minutes; see `copal site status`, start it with \
                     `copal site start`",
                ),
                reason(WhyCode::Queued, "BatchJob 3 is not submitted to the scheduler yet"),
                reason(WhyCode::Tags, "BatchJob 2 takes only Jobs with the tag system=D2O, which this one has not"),
            ],
        };
        insta::assert_snapshot!(at_both_widths(|| table(&why)));
    }
}
