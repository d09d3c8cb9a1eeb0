// SPDX-License-Identifier: MIT OR GPL-2.0
/* The cost of a datagram, from the call that sends it to its reception by another card of this machine. */
#include <linux/delay.h>
#include <linux/in.h>
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>

#include "test.h"

#define PORT 9	/* discard */
#define BYTES_MAX 1472
#define SETTLE_MS 20

static u64 received(void)
{
	struct rtnl_link_stats64 stats;
	struct net_device *dev;
	u64 sum = 0;

	rtnl_lock();
	for_each_netdev(&init_net, dev)
		sum += dev_get_stats(dev, &stats)->rx_packets;
	rtnl_unlock();
	return sum;
}

/* Waits until no more datagrams arrive. */
static u64 settled(void)
{
	u64 before, now = received();

	do {
		before = now;
		msleep(SETTLE_MS);
		now = received();
	} while (now != before);
	return now;
}

static int send(struct socket *socket, void *payload, unsigned int bytes, unsigned int count)
{
	unsigned int done;

	for (done = 0; done < count; done++) {
		struct kvec piece = { .iov_base = payload, .iov_len = bytes };
		struct msghdr header = {};
		int sent = kernel_sendmsg(socket, &header, &piece, 1, bytes);

		if (sent != bytes) {
			pr_err("datagram %u of %u is not sent: %d\n", done, count, sent);
			return -EIO;
		}
	}
	return 0;
}

static int measure(struct socket *socket, void *payload, unsigned int bytes, unsigned int count)
{
	u64 before = settled(), begun_ns, end_ns, arrived;
	int error = test_busy_ns(&begun_ns) ?: send(socket, payload, bytes, count);

	if (error)
		return error;
	arrived = settled() - before;
	error = test_busy_ns(&end_ns);
	if (error)
		return error;
	if (arrived < count - count / 100) {
		pr_err("of %u datagrams %llu have arrived\n", count, arrived);
		return -EIO;
	}
	pr_info("datagrams %u bytes %u arrived %llu each_ns %llu\n", count, bytes, arrived,
		DIV_ROUND_CLOSEST_ULL(end_ns - begun_ns, count));
	return 0;
}

static int datagrams(const char *address, unsigned int bytes, unsigned int count)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = in_aton(address) };
	void *payload = kzalloc(bytes, GFP_KERNEL);
	struct socket *socket;
	int error;

	if (!payload)
		return -ENOMEM;
	error = sock_create_kern(&init_net, PF_INET, SOCK_DGRAM, IPPROTO_UDP, &socket);
	if (!error) {
		error = kernel_connect(socket, (void *)&to, sizeof(to), 0) ?:
			measure(socket, payload, bytes, count);
		sock_release(socket);
	}
	kfree(payload);
	return error;
}

static ssize_t datagrams_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	unsigned int bytes, count;
	char text[64], address[16];
	int error = test_text(from, len, text, sizeof(text));

	if (error)
		return error;
	if (sscanf(text, "%15s %u %u", address, &bytes, &count) != 3 || !bytes || bytes > BYTES_MAX || !count)
		return -EINVAL;
	return datagrams(address, bytes, count) ?: len;
}

const struct file_operations test_datagrams = { .owner = THIS_MODULE, .write = datagrams_write };
