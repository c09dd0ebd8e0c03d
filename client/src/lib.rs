//! What Copal's programs on the user's side share: the typed API client, the credentials file, the processes of a machine,
//! and the files of a Site. The `copal` command itself is in `bin/copal`.

pub mod agent_status;
pub mod api;
pub mod app_file;
pub mod credentials;
mod file_lock;
pub mod launcher_exit;
pub mod launcher_login;
pub mod platforms;
pub mod processes;
pub mod remote_apps;
pub mod site_dir;
pub mod spool;
mod yaml;

pub use api::{Client, ClientError};
pub use credentials::{Credentials, copal_home};
pub use site_dir::SiteDir;
