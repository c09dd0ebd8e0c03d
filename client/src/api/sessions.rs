//! Calls of a lease's holder: the launcher and the agent.

use copal_schemas::{
    BatchJobId, SessionId, SiteId,
    job::Job,
    page::Page,
    session::{Acquire, Session, SessionCreate, Signals, SignalsQuery, Updates, UpdatesAnswer},
};
use reqwest::Method;

use super::{Client, ClientError, patience};

impl Client {
    /// Opens a Session.
    ///
    /// # Errors
    /// `conflict` when the Site or the BatchJob is unknown.
    pub async fn create_session(
        &self,
        site_id: SiteId,
        batch_job_id: Option<BatchJobId>,
    ) -> Result<Session, ClientError> {
        self.post("sessions/", &SessionCreate { site_id, batch_job_id }).await
    }

    /// The user's open Sessions.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn list_sessions(&self) -> Result<Vec<Session>, ClientError> {
        Ok(self.get::<Page<Session>>("sessions/", &()).await?.results)
    }

    /// Acquires Jobs; waits up to `wait_sec` for the first.
    ///
    /// # Errors
    /// `session_ended` when the Session is gone.
    pub async fn acquire(&self, id: SessionId, wanted: &Acquire) -> Result<Vec<Job>, ClientError> {
        let request = self.request(Method::POST, &format!("sessions/{id}")).json(wanted);
        self.fetch(request.timeout(patience(wanted.wait_sec))).await
    }

    /// Reports state changes of held Jobs.
    ///
    /// # Errors
    /// `session_ended` when the Session is gone. Single refused updates are in the answer.
    pub async fn send_updates(&self, id: SessionId, updates: &Updates) -> Result<UpdatesAnswer, ClientError> {
        self.post(&format!("sessions/{id}/updates"), updates).await
    }

    /// Asks what the holder must do; waits up to `wait_sec` for something. Counts as a heartbeat.
    ///
    /// # Errors
    /// `session_ended` when the Session is gone.
    pub async fn signals(&self, id: SessionId, wait_sec: f64) -> Result<Signals, ClientError> {
        let request = self.request(Method::GET, &format!("sessions/{id}/signals")).query(&SignalsQuery { wait_sec });
        self.fetch(request.timeout(patience(wait_sec))).await
    }

    /// Tells the service that the holder lives.
    ///
    /// # Errors
    /// `session_ended` when the Session is gone.
    pub async fn tick_session(&self, id: SessionId) -> Result<(), ClientError> {
        self.done(self.request(Method::PUT, &format!("sessions/{id}")).json(&serde_json::json!({}))).await
    }

    /// Ends the Session and frees its Jobs; those that are RUNNING become RUN_TIMEOUT.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn delete_session(&self, id: SessionId) -> Result<(), ClientError> {
        self.delete(&format!("sessions/{id}")).await
    }
}
