# To be read by a test: traces made by hand, in the folder $work.

# trace FILE VERSION LOST LINE...: a trace of these kernels: "name bytes microseconds..." is a launch for each number.
trace()
{
    file=$work/$1 version=$2 lost=$3
    shift 3
    {
        printf '{"displayTimeUnit":"ns","traceEvents":[   \n'
        printf '{"name":"kiln_eval","cat":"sync","ph":"X","ts":1.0,"dur":9.0,"pid":1,"tid":1,"args":{"line":3}},\n'
        for kernel in "$@"; do
            # shellcheck disable=SC2086
            set -- $kernel
            name=$1 bytes=$2
            shift 2
            for us in "$@"; do
                printf '{"name":"%s","cat":"launch","ph":"X","ts":1.0,"dur":%s,"pid":1,"tid":1,"args":{"bytes":%s,"flops":7,"tasks":1}},\n' \
                    "$name" "$us" "$bytes"
            done
        done
        printf '{"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"kiln"}}\n],"otherData":{"kiln":"%s","lost_events":%s}}   \n' \
            "$version" "$lost"
    } >"$file"
}
