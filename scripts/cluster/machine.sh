# Sourced by cluster.sh: what the machine lends a cluster, and how it is disturbed: network, disks, clocks.
# $dir/cluster gets: NET (namespaces or loopback), TAG and SUBNET of the network, DISKS (yes or nothing), CLOCK (a library).

remember() { printf '%s=%q\n' "$1" "$2" >>"$dir/cluster"; }

# ---- network -------------------------------------------------------------------------------------------------------

set_up_network() {
  if [ -n "$1" ] && make_bridge; then
    local n
    for n in $(seq "$nodes"); do make_namespace "$n"; done
    return
  fi
  [ -z "$1" ] || loud "NO NETWORK NAMESPACES HERE (root, ip and nft are needed): loopback only, NOTHING CAN BE PARTITIONED"
  remember NET loopback
  for n in $(seq "$nodes"); do
    printf 'HOST=127.0.0.1\nPORT=%s\nRPC=%s\nADMIN=%s\n' "$(free_port)" "$(free_port)" "$(free_port)" >"$dir/node-$n/ports"
  done
}

# A bridge no other cluster has; its name is taken atomically.
make_bridge() {
  [ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v nft >/dev/null || return 1
  local k
  for k in $(seq 0 199); do
    # An address in use is somebody's, even if the name is free.
    ! ip -o -4 addr | grep -F " 10.213.$k." >/dev/null || continue
    ip link add "kt$k" type bridge 2>/dev/null || continue
    if ip addr add "10.213.$k.254/24" dev "kt$k" && ip link set "kt$k" up; then
      remember NET namespaces; remember TAG "kt$k"; remember SUBNET "10.213.$k"
      TAG=kt$k SUBNET=10.213.$k
      return 0
    fi
    ip link del "kt$k"
    return 1
  done
  return 1
}

make_namespace() {
  local n=$1 ns=${TAG}n$1
  ip netns add "$ns"
  ip link add "${TAG}h$n" type veth peer name eth0 netns "$ns"
  ip link set "${TAG}h$n" master "$TAG" up
  ip -n "$ns" addr add "$SUBNET.$n/24" dev eth0
  ip -n "$ns" link set eth0 up
  ip -n "$ns" link set lo up
  # Who is in the set is not heard. Connections stay open, as with a real cable that is pulled.
  ip netns exec "$ns" nft -f - <<'END'
table inet faults {
  set unheard { type ipv4_addr; }
  chain input { type filter hook input priority 0; ip saddr @unheard drop; }
}
END
  printf 'HOST=%s\nPORT=9092\nRPC=33145\nADMIN=9644\n' "$SUBNET.$n" >"$dir/node-$n/ports"
}

take_down_network() {
  [ "${NET:-}" = namespaces ] || return 0
  local n
  for n in $(seq "$NODES"); do ip netns del "${TAG}n$n" 2>/dev/null || true; done
  ip link del "$TAG" 2>/dev/null || true
}

address_of() { if [ "$1" = c ]; then echo "$SUBNET.254"; else echo "$SUBNET.$(numbered "$1")"; fi; }

# What node (or the clients) $2 no longer hears from $1. Clients have no namespace, so their node does not answer.
deafen() {
  if [ "$2" = c ]; then
    ip netns exec "${TAG}n$1" nft list table inet faults | grep -q 'chain output' ||
      ip netns exec "${TAG}n$1" nft -f - <<'END'
table inet faults {
  set unsaid { type ipv4_addr; }
  chain output { type filter hook output priority 0; ip daddr @unsaid drop; }
}
END
    ip netns exec "${TAG}n$1" nft add element inet faults unsaid "{ $(address_of c) }"
  else
    ip netns exec "${TAG}n$2" nft add element inet faults unheard "{ $(address_of "$1") }"
  fi
}

cut_network() {
  [ "$NET" = namespaces ] || cannot "partition $1: no namespaces"
  local from to a b way
  case $1 in *'|'*) way='|' ;; *'>'*) way='>' ;; *) die "no such partition: $1" ;; esac
  from=${1%"$way"*} to=${1#*"$way"}
  for a in ${from//,/ }; do
    for b in ${to//,/ }; do
      deafen "$a" "$b"
      [ "$way" = '>' ] || deafen "$b" "$a"
    done
  done
}

heal_network() {
  [ "$NET" = namespaces ] || return 0
  local n
  for n in $(seq "$NODES"); do
    ip netns exec "${TAG}n$n" nft flush set inet faults unheard
    ip netns exec "${TAG}n$n" nft flush set inet faults unsaid 2>/dev/null || true
  done
}

# The words in front of a node's command.
inside() { [ "$NET" != namespaces ] || echo "nsenter --net=/run/netns/${TAG}n$1"; }

# ---- disks ---------------------------------------------------------------------------------------------------------

set_up_disks() {
  DISKS=
  if [ -n "$1" ]; then
    local n
    DISKS=yes
    for n in $(seq "$nodes"); do
      make_disk "$n" && mount_disk "$n" || { DISKS=; break; }
    done
    if [ -z "$DISKS" ]; then
      take_down_disks
      loud "NO DISKS OF THEIR OWN HERE (root and loop devices are needed): no slow disk, no power loss"
    fi
  fi
  remember DISKS "$DISKS"
}

make_disk() {
  rm -f "$dir/node-$1/disk" && truncate -s 6G "$dir/node-$1/disk" && mkfs.ext4 -q "$dir/node-$1/disk"
}

mount_disk() { mount -o loop "$dir/node-$1/disk" "$dir/node-$1/data"; }

unmount_disk() {
  local _
  for _ in $(seq 100); do
    mountpoint -q "$dir/node-$1/data" || return 0
    umount "$dir/node-$1/data" 2>/dev/null || sleep 0.1
  done
  umount -l "$dir/node-$1/data"
}

take_down_disks() {
  local n
  for n in $(seq "${NODES:-$nodes}"); do
    unmount_disk "$n"
    [ "${1:-}" = --keep ] || rm -f "$dir/node-$n/disk"
  done
}

need_disks() { [ -n "$DISKS" ] || cannot "the nodes have no disks of their own"; }

# The file that limits operations on the node's device, for this process's group and thus for the node's.
throttle_file() {
  local group
  group=$(sed -n 's/^[0-9]*:[a-z,]*blkio[a-z,]*://p' /proc/self/cgroup)
  echo "/sys/fs/cgroup/blkio${group%/}/blkio.throttle.write_iops_device"
}

# limit_disk N IOPS: 0 is no limit. The journal's thread is in the root group, so that gets the limit too.
limit_disk() {
  local device file
  device=$(lsblk -no MAJ:MIN "$(findmnt -no SOURCE "$dir/node-$1/data")" | tr -d ' ')
  for file in "$(throttle_file)" /sys/fs/cgroup/blkio/blkio.throttle.write_iops_device; do
    [ -e "$file" ] || return 1
    echo "$device $2" >"$file"
  done
}

slow_disk() { need_disks; limit_disk "$1" "$2" || cannot "slow-disk: no cgroup v1 blkio throttle"; }
fast_disk() { [ -z "$DISKS" ] || ! mountpoint -q "$dir/node-$1/data" || limit_disk "$1" 0 2>/dev/null || true; }
freeze_disk() { need_disks; touch "$dir/node-$1/frozen"; fsfreeze -f "$dir/node-$1/data"; }
thaw_disk() {
  [ -e "$dir/node-$1/frozen" ] || return 0
  fsfreeze -u "$dir/node-$1/data" 2>/dev/null || true
  rm -f "$dir/node-$1/frozen"
}

# All at the same moment: first no disk takes anything any more, then the processes end.
power_loss() {
  need_disks
  local n
  for n in "$@"; do
    # EXT4_IOC_SHUTDOWN without a flush of the journal: what was not synced never was.
    python3 -c 'import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack("I", 2))' "$dir/node-$(numbered "$n")/data"
  done
  for n in "$@"; do kill -KILL "$(node_pid "$n")" 2>/dev/null || true; done
  for n in "$@"; do
    kill_node "$n"
    fast_disk "$n"
    unmount_disk "$n"
    mount_disk "$n"
  done
}

# ---- clocks --------------------------------------------------------------------------------------------------------

set_up_clock() {
  CLOCK=
  if [ -n "$1" ]; then
    local at
    for at in /usr/lib/*/faketime/libfaketime.so.1 /usr/lib/faketime/libfaketime.so.1; do
      [ ! -e "$at" ] || CLOCK=$at
    done
    # A static program does not load it.
    ldd "$program" >/dev/null 2>&1 || CLOCK=
    [ -n "$CLOCK" ] || loud "NO FAKE CLOCK (apt-get install faketime, and a dynamic binary): clocks stay true"
  fi
  remember CLOCK "$CLOCK"
  for n in $(seq "$nodes"); do echo +0 >"$dir/node-$n/clock"; done
}

set_clock() {
  case $2 in [-+]*) echo "$2" ;; *) echo "+$2" ;; esac >"$dir/node-$1/clock.new"
  mv "$dir/node-$1/clock.new" "$dir/node-$1/clock"
}

# Only the wall clock: timers go by the monotonic ones.
clock_environment() {
  [ -n "$CLOCK" ] || return 0
  echo "LD_PRELOAD=$CLOCK FAKETIME_TIMESTAMP_FILE=$dir/node-$1/clock FAKETIME_CACHE_DURATION=1"
  echo "FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
}
