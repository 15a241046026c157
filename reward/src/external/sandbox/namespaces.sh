# Builds a root directory inside new namespaces and runs a command in it; `command_line.rs` calls it.
# Arguments: the path of the new root, the size limit in bytes of each writable directory, the mounts and
# links up to "--", and the command.
set -eu
umask 022
root=$1 bytes=$2
shift 2
mount -t tmpfs -o mode=755,size=1m,nr_inodes=4k,nosuid,nodev tmpfs "$root"
cd "$root"
mkdir proc dev dev/shm work tmp old
for place in work tmp dev/shm; do
    mount -t tmpfs -o "mode=1777,size=$bytes,nr_inodes=64k,nosuid,nodev" tmpfs "$place"
done
while [ "$1" != -- ]; do
    case $1 in
    bind)
        if [ -d "$2" ]; then
            mkdir -p ".$3"
        else
            mkdir -p ".${3%/*}"
            : >".$3"
        fi
        mount --bind -o ro,nosuid,nodev "$2" ".$3"
        ;;
    link) ln -s "$2" ".$3" ;;
    esac
    shift 3
done
shift
mount -t proc -o nosuid,nodev,noexec proc proc
for device in null zero full random urandom; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
pivot_root . old
umount -l /old
rmdir /old
mount -o remount,bind,ro /
cd /work
set +e
"$@"
# The shell stays the first process of the namespace, because it still has a command to run; when it ends, the
# kernel kills all other processes.
exit $?
