//! Apps that their owner makes through the API, where the settings say `allow_remote_apps: true`: their files are written to
//! `apps/`, and removed when the App or the permission goes. The service is told why the Site does not run one; it has no say
//! in whether. How the files look is `copal_client::remote_apps`.

use std::{fs, time::Duration};

use copal_client::remote_apps;
use copal_schemas::app::{App, AppPatch};

use super::{Context, Passes, run_passes};

/// How often the Apps are looked at when nothing says that one was changed.
const PERIOD: Duration = Duration::from_secs(300);

/// Runs until the agent stops.
pub async fn run(context: Context) {
    run_passes(&context, RemoteApps { context: context.clone() }).await;
}

struct RemoteApps {
    context: Context,
}

impl Passes for RemoteApps {
    const NAME: &'static str = "apps";

    async fn pass(&mut self) -> anyhow::Result<(String, Duration)> {
        let is_allowed = self.context.settings.current().0.allow_remote_apps;
        let client = self.context.api.client();
        let known = client.list_apps(&[self.context.site.id]).await?;
        let remote: Vec<&App> = known.iter().filter(|app| app.remote.is_some()).collect();
        self.remove_others(if is_allowed { &remote } else { &[] })?;
        let mut taken = 0;
        for app in &remote {
            let refusal = match is_allowed {
                true => self.take(app).err(),
                false => Some(not_allowed(&app.name)),
            };
            taken += usize::from(refusal.is_none());
            if refusal != app.refusal {
                let patch = AppPatch { refusal: Some(refusal), ..AppPatch::default() };
                client.update_app(app.id, &patch).await?;
            }
        }
        let detail = match (is_allowed, remote.len()) {
            (_, 0) => "none is made through the API".into(),
            (true, all) => format!("{taken} of {all} that are made through the API are taken"),
            (false, all) => format!("{all} made through the API, which the settings don't allow"),
        };
        Ok((detail, PERIOD))
    }

    async fn rung(&self) {
        self.context.wakes.apps.notified().await;
    }
}

impl RemoteApps {
    /// Writes the file of an App where it is not as it should be.
    fn take(&self, app: &App) -> Result<(), String> {
        match remote_apps::write(&self.context.dir, app) {
            Ok(false) => Ok(()),
            Ok(true) => {
                tracing::info!(app = app.name, "wrote the file of an App that was made through the API");
                Ok(())
            }
            Err(refusal) => {
                tracing::warn!(app = app.name, "an App that was made through the API is not taken: {refusal}");
                Err(refusal)
            }
        }
    }

    /// Removes files that were made for Apps other than these.
    fn remove_others(&self, remote: &[&App]) -> anyhow::Result<()> {
        for (id, path) in remote_apps::files(&self.context.dir)? {
            let stays = remote.iter().any(|app| app.id == id && path == self.context.dir.app_file(&app.name));
            if !stays {
                fs::remove_file(&path)?;
                tracing::info!(app.id = id.0, "removed {}, whose App was made through the API", path.display());
            }
        }
        Ok(())
    }
}

/// The sentence that Jobs of such an App are given where the settings don't allow it.
fn not_allowed(name: &str) -> String {
    format!(
        "the Site takes no Apps that are made through the API; set `allow_remote_apps: true` in its settings.yml and run \
         `copal site sync`, or write apps/{name}.yml and run `copal app sync`"
    )
}
