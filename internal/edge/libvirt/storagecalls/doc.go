// Package storagecalls serves libvirt's calls about storage pools and volumes, with the streams of their data.
package storagecalls
