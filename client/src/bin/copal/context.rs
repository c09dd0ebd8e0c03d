//! What every command has at hand: the streams, the clock, and on demand the service, the Site
//! of this folder and the user's Sites.

use copal_client::{Client, Credentials, SiteDir};
use copal_schemas::{SiteId, app::App, site::Site};

use crate::{
    failure::{Failure, Result},
    human::Clock,
    output::Output,
    sites::{self, Selector},
};

/// The streams and the clock; the rest is asked for when it is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// Where data and talk go.
    pub(crate) out: Output,
    /// What time it is.
    pub(crate) clock: Clock,
}

impl Context {
    /// A connection with the stored token.
    pub(crate) fn client(self) -> Result<Client> {
        let credentials = Credentials::load()?;
        if credentials.have_lapsed(self.clock.now) {
            return Err(Failure::new(format!(
                "the token of {} at {} lapsed {}",
                credentials.username,
                credentials.api_root,
                self.clock.ago(credentials.token_expiry)
            ))
            .hint("run `copal login`"));
        }
        Ok(Client::from_credentials(&credentials)?)
    }

    /// The id of the Site that this folder is in; `None` outside of Sites.
    pub(crate) fn this_site(self) -> Result<Option<SiteId>> {
        Ok(SiteDir::find().map(|folder| folder.settings()).transpose()?.map(|settings| settings.site_id))
    }

    /// The Sites that `--site` means, and all of the user's.
    pub(crate) async fn sites(self, client: &Client, selector: Option<&str>) -> Result<SelectedSites> {
        let selector = selector.map(Selector::parse).transpose()?;
        // A broken settings.yml only matters to those who mean the Site that it belongs to.
        let here = if selector.as_ref().is_none_or(Selector::needs_this) { self.this_site()? } else { None };
        let all = client.list_sites().await?;
        let ids = sites::select(&all, here, selector.as_ref(), self.clock.now)?;
        Ok(SelectedSites { all, ids })
    }

    /// The one Site that `--site` means.
    pub(crate) async fn one_site(self, client: &Client, selector: Option<&str>) -> Result<Site> {
        let selected = self.sites(client, selector).await?;
        sites::only(&selected.all, &selected.ids).cloned()
    }
}

/// Sites that are meant, among all of the user's.
#[derive(Debug)]
pub(crate) struct SelectedSites {
    /// All of the user's Sites.
    pub(crate) all: Vec<Site>,
    /// Those meant.
    pub(crate) ids: Vec<SiteId>,
}

impl SelectedSites {
    /// Those meant.
    pub(crate) fn selected(&self) -> impl Iterator<Item = &Site> {
        self.all.iter().filter(|site| self.ids.contains(&site.id))
    }

    /// The name of a Site, or its id where it is not the user's any more.
    pub(crate) fn name(&self, id: SiteId) -> String {
        self.all.iter().find(|site| site.id == id).map_or_else(|| id.to_string(), |site| site.name.clone())
    }

    /// The one App that a name or an id means at the Sites meant.
    pub(crate) async fn app(&self, client: &Client, name: &str) -> Result<App> {
        let apps = client.list_apps(&self.ids).await?;
        let site_name = |id| self.name(id);
        sites::only_app(apps.into_iter().filter(|app| self.ids.contains(&app.site_id)).collect(), name, site_name)
    }
}
