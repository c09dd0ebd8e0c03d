//! Which Sites `--site` means, and which App a name means. Pure: the lists are given.

use chrono::TimeDelta;
use copal_schemas::{SiteId, Timestamp, app::App, site::Site};

use crate::{
    failure::{Failure, Result},
    suggest::choice,
};

/// Minutes without news of its agent after which a Site no longer counts as active.
pub(crate) const ACTIVE_MIN: i64 = 5;

/// One part of `--site`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    This,
    All,
    Active,
    /// An id, a name or a part of a path.
    Named(String),
}

/// What `--site` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Part>);

impl Selector {
    /// Reads `this|all|active|ID|NAME|PATH-part[,…]`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts: Vec<Part> = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| match part {
                "this" => Part::This,
                "all" => Part::All,
                "active" => Part::Active,
                named => Part::Named(named.into()),
            })
            .collect();
        if parts.is_empty() {
            return Err(
                Failure::usage("--site names no Site").hint("use this, all, active, an id, a name or a part of a path")
            );
        }
        Ok(Self(parts))
    }

    /// Whether it matters in which Site's folder the user is.
    pub(crate) fn needs_this(&self) -> bool {
        self.0.contains(&Part::This)
    }
}

/// Whether a Site may be named so: whatever its name, `--site` must be able to mean it and no other.
///
/// # Errors
/// What is wrong with the name, and what to do.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let wrong = match name {
        _ if name.trim().is_empty() => "is empty",
        "this" | "all" | "active" => "means other Sites where one is chosen",
        _ if name.bytes().all(|byte| byte.is_ascii_digit()) => "would be taken for an id",
        _ if name.contains(',') => "has a comma, which stands between names of Sites",
        _ if name.contains(char::is_control) => "has a control character",
        _ if name.trim() != name => "begins or ends with a space",
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("{name:?} can't be a Site's name: it {wrong}"))
        .hint("choose another one: `copal site init FOLDER --name NAME`, `copal site rename NAME`"))
}

/// Whether the Site's agent gave news lately.
pub(crate) fn is_active(site: &Site, now: Timestamp) -> bool {
    (now - site.last_refresh).num_minutes() < ACTIVE_MIN
}

/// Whether nothing was heard of it since it was made: a new Site has its own creation as its last news. What its owner
/// changes of it, such as its name, counts as news.
pub(crate) fn is_unheard(site: &Site) -> bool {
    (site.last_refresh - site.creation_date).abs() < TimeDelta::milliseconds(100)
}

/// The Sites that are meant, in the order of their ids; never none.
///
/// # Errors
/// When a name means none, and when there is nothing to choose from.
pub(crate) fn select(
    all: &[Site],
    here: Option<SiteId>,
    selector: Option<&Selector>,
    now: Timestamp,
) -> Result<Vec<SiteId>> {
    let default = Selector(vec![if here.is_some() { Part::This } else { Part::Active }]);
    let mut ids = Vec::new();
    for part in &selector.unwrap_or(&default).0 {
        match part {
            Part::All => ids.extend(all.iter().map(|site| site.id)),
            Part::Active => ids.extend(all.iter().filter(|site| is_active(site, now)).map(|site| site.id)),
            Part::This => ids.push(this(all, here)?),
            Part::Named(name) => ids.extend(named(all, name)?),
        }
    }
    ids.sort_unstable();
    ids.dedup();
    match () {
        () if !ids.is_empty() => Ok(ids),
        () if all.is_empty() => Err(Failure::new("you have no Site").hint("make one with `copal site init FOLDER`")),
        () => Err(Failure::new("none of your Sites is active")
            .hint("start an agent with `copal site start`, or add --site all")),
    }
}

fn this(all: &[Site], here: Option<SiteId>) -> Result<SiteId> {
    let id = here.ok_or_else(|| {
        Failure::usage("this folder is in no Site").hint("go to a Site's folder, or name one with --site")
    })?;
    if all.iter().any(|site| site.id == id) {
        return Ok(id);
    }
    Err(Failure::new(format!("the service has no Site {id} of yours, which this folder's settings.yml names"))
        .hint("check with `copal whoami` that you are logged in to the right service as the right user"))
}

fn named(all: &[Site], name: &str) -> Result<Vec<SiteId>> {
    if let Ok(id) = name.parse::<SiteId>()
        && let Some(site) = all.iter().find(|site| site.id == id)
    {
        return Ok(vec![site.id]);
    }
    if let Some(site) = all.iter().find(|site| site.name == name) {
        return Ok(vec![site.id]);
    }
    let ids: Vec<SiteId> = all.iter().filter(|site| site.path.contains(name)).map(|site| site.id).collect();
    if !ids.is_empty() {
        return Ok(ids);
    }
    let names: Vec<&str> = all.iter().map(|site| site.name.as_str()).collect();
    Err(Failure::new(format!("no Site of yours has the id, the name or a path with {name:?}")).hint(choice(
        name,
        &names,
        "make one with `copal site init FOLDER`",
    )))
}

/// The only one of the Sites that are meant.
///
/// # Errors
/// When there are several; they are named.
pub(crate) fn only<'a>(all: &'a [Site], ids: &[SiteId]) -> Result<&'a Site> {
    let sites: Vec<&Site> = all.iter().filter(|site| ids.contains(&site.id)).collect();
    match sites[..] {
        [site] => Ok(site),
        _ => {
            let names: Vec<String> = sites.iter().map(|site| format!("{} ({})", site.name, site.id)).collect();
            Err(Failure::usage(format!("{} Sites could be meant: {}", sites.len(), names.join(", ")))
                .hint("name one with --site"))
        }
    }
}

/// The only App of that name or id.
///
/// # Errors
/// When there is none or several; the candidates are named.
pub(crate) fn only_app(apps: Vec<App>, name: &str, site_name: impl Fn(SiteId) -> String) -> Result<App> {
    let is_meant = |app: &App| app.name == name || name.parse().is_ok_and(|id: i64| app.id.0 == id);
    let names: Vec<String> = apps.iter().map(|app| app.name.clone()).collect();
    let mut meant: Vec<App> = apps.into_iter().filter(is_meant).collect();
    match (meant.pop(), meant.is_empty()) {
        (Some(app), true) => Ok(app),
        (Some(last), false) => {
            meant.push(last);
            let sites: Vec<String> = meant.iter().map(|app| site_name(app.site_id)).collect();
            Err(Failure::usage(format!("several Sites have an App {name}: {}", sites.join(", ")))
                .hint("name one with --site"))
        }
        (None, _) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Err(Failure::new(format!("no App {name:?} at the Sites meant")).hint(choice(
                name,
                &names,
                "write it into the Site's apps folder and run `copal app sync`",
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use copal_schemas::{AppId, site::SiteDetails, time};

    use super::*;

    const NOW: &str = "2026-11-30T12:00:00";

    fn site(id: i64, name: &str, path: &str, refreshed: &str) -> Site {
        Site {
            name: name.into(),
            path: path.into(),
            details: SiteDetails::default(),
            id: SiteId(id),
            last_refresh: time::parse(refreshed).unwrap(),
            creation_date: time::parse("2026-01-01T00:00:00").unwrap(),
        }
    }

    fn sites() -> Vec<Site> {
        vec![
            site(1, "theta", "/lus/ann/theta", "2026-11-30T11:59:00"),
            site(2, "polaris", "/lus/ann/polaris", "2026-11-30T11:58:00"),
            site(3, "2", "/home/ann/old", "2026-11-01T00:00:00"),
        ]
    }

    fn chosen(selector: Option<&str>, here: Option<i64>) -> Result<Vec<i64>> {
        let selector = selector.map(Selector::parse).transpose()?;
        let ids = select(&sites(), here.map(SiteId), selector.as_ref(), time::parse(NOW).unwrap())?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn inside_a_site_it_is_meant_and_outside_the_active_ones() {
        assert_eq!(chosen(None, Some(3)).unwrap(), [3]);
        assert_eq!(chosen(None, None).unwrap(), [1, 2]);
    }

    #[test]
    fn every_kind_of_selector_is_known() {
        assert_eq!(chosen(Some("all"), Some(1)).unwrap(), [1, 2, 3]);
        assert_eq!(chosen(Some("this"), Some(1)).unwrap(), [1]);
        assert_eq!(chosen(Some("active"), Some(3)).unwrap(), [1, 2]);
        assert_eq!(chosen(Some("theta, 3"), None).unwrap(), [1, 3]);
        assert_eq!(chosen(Some("lus"), None).unwrap(), [1, 2]);
        assert_eq!(chosen(Some("2"), None).unwrap(), [2], "an id comes before a name");
    }

    #[test]
    fn a_name_can_be_chosen_by() {
        for name in ["theta", "theta 2", "2nd", "über-all", "all2"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", " ", "all", "this", "active", "12", "a,b", "a\nb", " a"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        insta::assert_snapshot!(check_name("12").unwrap_err().lines(), @r#"
        error: "12" can't be a Site's name: it would be taken for an id
        hint: choose another one: `copal site init FOLDER --name NAME`, `copal site rename NAME`
        "#);
    }

    #[test]
    fn what_means_nothing_is_an_error_with_the_choice() {
        insta::assert_snapshot!(chosen(Some("tetha"), None).unwrap_err().lines(), @r#"
        error: no Site of yours has the id, the name or a path with "tetha"
        hint: did you mean theta?
        "#);
        insta::assert_snapshot!(chosen(Some("this"), None).unwrap_err().lines(), @r"
        error: this folder is in no Site
        hint: go to a Site's folder, or name one with --site
        ");
        insta::assert_snapshot!(chosen(None, Some(9)).unwrap_err().lines(), @r"
        error: the service has no Site 9 of yours, which this folder's settings.yml names
        hint: check with `copal whoami` that you are logged in to the right service as the right user
        ");
        insta::assert_snapshot!(only(&sites(), &[SiteId(1), SiteId(2)]).unwrap_err().lines(), @r"
        error: 2 Sites could be meant: theta (1), polaris (2)
        hint: name one with --site
        ");
    }

    fn app(id: i64, site_id: i64, name: &str) -> App {
        App {
            site_id: SiteId(site_id),
            name: name.into(),
            serialized_class: String::new(),
            source_code: String::new(),
            description: String::new(),
            parameters: Default::default(),
            transfers: Default::default(),
            id: AppId(id),
            command: None,
            hooks: Default::default(),
            max_restarts: None,
            gone: false,
            remote: None,
            refusal: None,
        }
    }

    #[test]
    fn an_app_is_found_by_name_or_id_and_must_be_the_only_one() {
        let apps = || vec![app(1, 1, "Hello"), app(2, 2, "Hello"), app(3, 2, "Sim")];
        let name = |id: SiteId| format!("site{id}");
        assert_eq!(only_app(apps(), "Sim", name).unwrap().id, AppId(3));
        assert_eq!(only_app(apps(), "1", name).unwrap().id, AppId(1));
        insta::assert_snapshot!(only_app(apps(), "Hello", name).unwrap_err().lines(), @r"
        error: several Sites have an App Hello: site1, site2
        hint: name one with --site
        ");
        insta::assert_snapshot!(only_app(apps(), "Helo", name).unwrap_err().lines(), @r#"
        error: no App "Helo" at the Sites meant
        hint: did you mean Hello?
        "#);
    }
}
