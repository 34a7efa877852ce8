#!/bin/sh
# namespaces.sh MPIRUN BACKEND PARALLEL: examples/parallel on two ranks in network namespaces of their own, joined by a link of 100 Mbit a second whose queue is so
# short that it loses packets: the losses of one rank. With MPICH, whose launcher needs no network. 77: the machine does not allow it.
mpirun=$1 backend=$2 program=$3
skip()
{
    echo "skipped: $1"
    exit 77
}
[ -n "$program" ] || skip "the examples are not built"
[ "$(id -u)" = 0 ] || skip "only root makes network namespaces"
command -v ip >/dev/null && command -v tc >/dev/null || skip "ip or tc is not there (Debian: iproute2)"
work=$(mktemp -d) || exit 1
a=kilna$$ b=kilnb$$
trap 'ip netns del $a 2>/dev/null; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
ip netns add $a 2>/dev/null && ip netns add $b 2>/dev/null || skip "ip netns add is not allowed here"
ip link add k0 netns $a type veth peer name k1 netns $b 2>/dev/null || skip "no veth here"
for end in "$a k0 1" "$b k1 2"; do
    set -- $end
    ip -n "$1" addr add "10.77.0.$3/24" dev "$2" && ip -n "$1" link set lo up && ip -n "$1" link set "$2" up || skip "no addresses here"
    tc -n "$1" qdisc add dev "$2" root tbf rate 100mbit burst 16kb limit 24kb 2>/dev/null || skip "the kernel has no tbf"
done
i=0
while [ $i -lt 600 ] && ! { ip -n $a link show k0 | grep -q 'state UP' && ip -n $b link show k1 | grep -q 'state UP'; }; do
    sleep 0.1
    i=$((i + 1))
done
export KILN_THREADS=1 KILN_CACHE=off UCX_TLS=tcp,self MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp
set -- data --blocks 2 --width 64 --hidden 256 --batch 64 --steps 20 --every 5
KILN_COMM=self "$program" "$@" | grep ^step >"$work/alone"
# (over TCP this MPICH's MPI_Finalize waits for ever now and then: what counts is what was printed before, and then it is ended)
KILN_COMM=$backend timeout -k 5 900 "$mpirun" -n 1 env UCX_NET_DEVICES=k0 FI_TCP_IFACE=k0 ip netns exec $a "$program" "$@" : \
    -n 1 env UCX_NET_DEVICES=k1 FI_TCP_IFACE=k1 ip netns exec $b "$program" "$@" >"$work/out" 2>&1 &
i=0
while kill -0 $! 2>/dev/null && [ $i -lt 20 ]; do # 2 s after the last line
    sleep 0.1
    ! grep -q '^data, 2 ranks' "$work/out" || i=$((i + 1))
done
kill $! 2>/dev/null
wait $!
grep ^step "$work/out" >"$work/two"
tc -n $a -s qdisc show dev k0 | grep Sent
sent=$(tc -n $a -s qdisc show dev k0 | sed -n 's/ *Sent \([0-9]*\) bytes.*/\1/p')
paste "$work/alone" "$work/two" | awk '/^step/ { n++; d = $4 - $8; if (d * d > 1e-10 || $2 != $6) bad = 1 } END { exit bad || n != 5 }' ||
    { cat "$work/alone" "$work/out"; exit 1; }
[ "$sent" -gt 4000000 ] || skip "this MPICH does not use the link"
grep -q '^data, 2 ranks' "$work/out"
