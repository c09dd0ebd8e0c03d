# shellcheck shell=bash
# Sourced by bin/demo and bin/test: finds out which programs are missing and installs their Debian
# packages where it may, else says which they are.

# Postgres keeps its server programs off the PATH, and users have no sbin on theirs.
has_program() {
  command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1
}

# need_packages CALLER PROGRAM:PACKAGE...
need_packages() {
  local caller=$1 pair missing=() sudo=()
  shift
  if ! command -v cargo >/dev/null 2>&1; then
    echo "$caller: there is no Rust toolchain (cargo); install one with rustup first" >&2
    exit 1
  fi
  for pair in "$@"; do
    has_program "${pair%%:*}" || missing+=("${pair#*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    sudo=(sudo -n)
    if ! sudo -n true 2>/dev/null; then
      echo "$caller: these packages are missing: ${missing[*]}" >&2
      echo "$caller: install them with: sudo apt-get install ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "$caller: installing ${missing[*]}"
  local log
  log=$(mktemp)
  # Debian's postgresql package makes and starts a cluster of its own unless it is told not to.
  if ! "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive bash -euc '
    install() { apt-get install -y --no-install-recommends "$@"; }
    apt-get update
    case " $* " in *" postgresql "*)
      install postgresql-common
      sed -i "s/^#*create_main_cluster.*/create_main_cluster = false/" /etc/postgresql-common/createcluster.conf
    esac
    case " $* " in *" openssh-server "* | *" pgbouncer "*)
      # Their programs are wanted, and no servers on their ports.
      if [ ! -e /usr/sbin/policy-rc.d ]; then
        printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d
        chmod +x /usr/sbin/policy-rc.d
        trap "rm -f /usr/sbin/policy-rc.d" EXIT
      fi
    esac
    install "$@"' bash "${missing[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "$caller: could not install ${missing[*]}; install them by hand" >&2
    exit 1
  fi
  rm -f "$log"
}
