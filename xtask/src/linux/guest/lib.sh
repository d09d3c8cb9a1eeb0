# What jobs use: `. /lib.sh`.

# load NAME [PARAMETERS]: inserts a module with these parameters, and before it what it needs and is not there yet.
load() {
	name=$(echo "$1" | tr - _)
	shift
	order=$name
	[ ! -e "/modules/$name.load" ] || order=$(cat "/modules/$name.load")
	for module in $order; do
		[ ! -e "/sys/module/$module" ] || continue
		if [ "$module" = "$name" ]; then
			insmod "/modules/$module.ko" "$@" || return
		else
			insmod "/modules/$module.ko" || return
		fi
	done
}
